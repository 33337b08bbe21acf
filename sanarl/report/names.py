"""Every metric's name and meaning, in the order of docs/metrics.md, and the charts that show them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

METRICS: dict[str, str] = {
    "step": "number of the step; 0 is before training",
    "loss": "what is differentiated, averaged over the step's optimiser steps",
    "grad_norm": "norm of the gradient before clipping",
    "lr": "learning rate",
    "skipped_steps": "optimiser steps left out so far because something was not finite",
    "sigma": "fine-tuning: mean noise level",
    "reward/mean": "mean reward of a rollout",
    "reward/max": "mean over groups of a group's highest reward",
    "reward/min": "mean over groups of a group's lowest reward",
    "reward/range": "mean over groups of highest minus lowest",
    "reward/avg": "weighted sum of the scorers' means: the reward itself",
    "reward/*": "mean of one scorer, unweighted, or of one of its further scores",
    "reward_std_mean": "mean over groups of the rewards' deviation",
    "zero_std_ratio": "share of groups whose rewards are all equal: they teach nothing",
    "group_size": "mean number of samples of a group",
    "trained_prompt_num": "groups of a rollout",
    "policy_loss": "the algorithm's loss before any KL term",
    "positive_loss": "DiffusionNFT: error of the positive branch",
    "negative_loss": "DiffusionNFT: error of the negative branch",
    "old_deviate": "squared distance of the learner's velocity from the old policy's",
    "matching_error": "AWM: flow-matching error of the learner on the samples of rollouts",
    "x0_norm": "mean square of the clean latents",
    "kl_div_loss": "squared distance of the learner's velocity from the reference's",
    "old_kl_div": "squared distance of the old policy's velocity from the reference's",
    "clip_fraction": "Flow-GRPO, AWM: share of ratios outside the clip range",
    "ratio": "Flow-GRPO, AWM: mean ratio of the learner's density, or what stands for it, to the old policy's",
    "ratio_deviation": "Flow-GRPO, AWM: mean distance of ratios from 1",
    "ratio_error": "Flow-GRPO: largest distance of a ratio from 1 before any update: rollout against learner",
    "recomputed_log_probs": "Flow-GRPO: 1 where log-probabilities were computed again for that reason",
    "pool/reward_mean": "rollout.n_candidates: mean reward of all that were drawn in full",
    "pool/reward_max": "rollout.n_candidates: mean over groups of their highest reward",
    "pool/reward_min": "rollout.n_candidates: mean over groups of their lowest reward",
    "pool/size": "rollout.n_candidates: mean number of a group that were drawn in full",
    "preview/reward_mean": "rollout.preview: mean reward of the previews",
    "preview/spearman": "rollout.preview: rank correlation of previews' rewards with those of full samples, by group",
    "preview/kendall": "rollout.preview: the same, Kendall's",
    "preview/top_overlap": "rollout.preview: share of the best by preview that are the best in full",
    "rollout/recompiled": "rollout.engine: graphs compiled again since the last step",
    "media/contrast": "mean deviation of colours in a rollout's pictures; near 0 for blank ones",
    "media/diversity": "mean deviation of colours between samples of a prompt; near 0 when all look the same",
    "eval/reward": "held-out reward: the same prompts from the same noise every time",
    "eval/contrast": "as media/contrast, on the held-out samples",
    "eval/diversity": "as media/diversity, on the held-out samples",
    "eval/avg": "as reward/avg, on the held-out samples",
    "eval/*": "held-out mean of one scorer, or of one of its further scores",
    "guards/reward": "reward on the guards' fixed prompts",
    "guards/diversity": "as media/diversity, on the guards' prompts",
    "guards/drift": "distance of velocities from the reference's, as a share of their size",
    "guards/edge_density": "share of pixels at an edge",
    "guards/colour_entropy": "entropy of the colours, in bits",
    "guards/saturation": "mean saturation of the colours",
    "guards/sharpness": "variance of the Laplacian",
    "guards/contrast": "standard deviation of luma",
    "guards/motion": "clips: mean absolute difference of neighbouring frames",
    "guards/warnings": "how many guards were out of order",
    "guards/*": "guards' mean of one scorer, or another statistic of their pictures",
    "time/step": "seconds of the whole step",
    "time/data": "seconds that items were waited for",
    "time/preview": "seconds of previews, part of time/rollout",
    "time/regenerate": "seconds of full samples after previews, part of time/rollout",
    "time/rollout": "seconds of sampling, and of scoring that did not fit beside it",
    "time/train": "seconds of loss terms and optimiser steps",
    "time/evaluate": "seconds of the evaluation",
    "time/guards": "seconds of the guards' look",
    "memory/peak_gib": "most GPU memory that tensors took on the main rank, GiB",
    "perf/tflops": "logging.report_mfu: achieved TFLOP/s of the rank",
    "perf/mfu": "logging.report_mfu: that over the peak of the device",
}
"""Name or pattern -> meaning."""

BANDS = {
    "prompts": "middle 80 % of the prompts' means",
    "samples": "from the mean lowest to the mean highest sample of a group",
    "error": "two standard errors over the prompts",
}


@dataclass(frozen=True)
class Chart:
    """One plot: metrics by name or pattern; patterns take what no chart names."""

    key: str
    title: str
    metrics: tuple[str, ...]
    bands: tuple[str, ...] = ()
    marks: bool = False
    """Few points: every one is drawn."""
    can_log: bool = False
    apart: bool = False
    """Every metric has a plot of its own."""


SECTIONS: tuple[tuple[str, str, tuple[Chart, ...]], ...] = (
    (
        "reward",
        "Reward",
        (
            Chart("held-out", "Held-out reward", ("eval/reward",), ("error",), marks=True),
            Chart("training", "Reward of rollouts", ("reward/mean",), ("samples", "prompts")),
            Chart("zero-std", "Share of groups with equal rewards", ("zero_std_ratio",)),
            Chart("deviation", "Deviation within groups", ("reward_std_mean",)),
            Chart("pool", "Candidates and what trains", ("pool/reward_mean", "pool/reward_max", "pool/reward_min")),
            Chart(
                "preview",
                "Previews against full samples",
                ("preview/spearman", "preview/kendall", "preview/top_overlap"),
            ),
            Chart("held-out-parts", "Held-out, by scorer", ("eval/*",), marks=True),
            Chart("training-parts", "Rollouts, by scorer", ("reward/*",)),
        ),
    ),
    (
        "optimisation",
        "Optimisation",
        (
            Chart("loss", "Loss", ("loss",), can_log=True),
            Chart("grad-norm", "Gradient norm", ("grad_norm",), can_log=True),
            Chart("policy", "Parts of the loss", ("policy_loss", "positive_loss", "negative_loss"), can_log=True),
            Chart("kl", "Distance from the reference", ("kl_div_loss", "old_kl_div"), can_log=True),
            Chart("old", "Learner's distance from the old policy", ("old_deviate",), can_log=True),
            Chart("ratio", "Ratios", ("clip_fraction", "ratio_deviation", "ratio_error"), can_log=True),
            Chart("lr", "Learning rate", ("lr",), can_log=True),
            Chart("skipped", "Optimiser steps left out", ("skipped_steps",)),
        ),
    ),
    (
        "guards",
        "Guards and pictures",
        (
            Chart("guards", "", ("guards/reward", "guards/*"), marks=True, apart=True),
            Chart("diversity", "Diversity within prompts", ("media/diversity", "eval/diversity")),
            Chart("contrast", "Contrast", ("media/contrast", "eval/contrast")),
            Chart("media", "Other picture statistics", ("media/*",)),
        ),
    ),
    (
        "time",
        "Time and memory",
        (
            Chart("seconds", "Seconds of a step", ("time/step",)),
            Chart("stages", "Seconds of a step, by stage", ("time/*",)),
            Chart("memory", "Peak GPU memory, GiB", ("memory/peak_gib",)),
            Chart("tflops", "Achieved TFLOP/s", ("perf/tflops",)),
            Chart("mfu", "Share of the device's peak", ("perf/mfu",)),
        ),
    ),
    ("more", "Everything else", (Chart("more", "", ("*",), apart=True),)),
)
"""Key, title and charts of every section."""

LEFT_OUT = ("reward/max", "reward/min", "reward/range", "reward/avg", "eval/avg")
"""The first three are shown as bands, and an average of the scorers is the reward itself."""


def described(name: str) -> str:
    """The meaning of a metric, of the first row whose name or pattern fits; empty for unknown ones."""
    if name in METRICS:
        return METRICS[name]
    return next((text for pattern, text in METRICS.items() if fnmatchcase(name, pattern)), "")


def sections(found: Iterable[str]) -> list[tuple[str, str, list[tuple[Chart, list[str]]]]]:
    """The sections that have something to show, every chart with its metrics among ``found``."""
    free = {name for name in found if name not in LEFT_OUT}
    named = {name for _, _, charts in SECTIONS for chart in charts for name in chart.metrics if "*" not in name}
    result = []
    for key, title, charts in SECTIONS:
        shown = []
        for chart in charts:
            taken = [name for name in chart.metrics if name in free]
            for pattern in (name for name in chart.metrics if "*" in name):
                taken += sorted(name for name in free - named - set(taken) if fnmatchcase(name, pattern))
            free -= set(taken)
            if chart.apart:
                shown += [(replace(chart, key=name.replace("/", "-"), title=name), [name]) for name in taken]
            elif taken:
                shown.append((chart, taken))
        if shown:
            result.append((key, title, shown))
    return result
