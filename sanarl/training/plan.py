"""What a run will do and take, in words."""

import shutil
from pathlib import Path

from torch import nn

from sanarl.config import Config
from sanarl.runtime import checkpoint
from sanarl.runtime.memory import free_memory
from sanarl.runtime.session import size
from sanarl.training import settings
from sanarl.training.build import Parts
from sanarl.training.fitting import stretched
from sanarl.training.job import Job

LARGE = 100_000_000
"""Parameters beyond which a CPU is no place to train."""


def overview(made: Parts, total: int) -> list[str]:
    """Model, trained share, data, steps, batch."""
    config, world, policy = made.config, made.world, made.policy
    trained = sum(m.numel() for m in policy.masters)
    whole = sum(p.numel() for p in policy.model.transformer.parameters())
    if config.is_rl:
        what = (
            f"{config.prompts_per_step} prompts x {_samples(config)} a rollout, "
            f"{config.updates_per_rollout} optimiser step(s) each"
        )
    else:
        what = f"{config.samples_per_step} samples a step"
    lines = [
        f"{config.task} of {config.policy.model_name_or_path}: {trained:,} of {whole:,} transformer parameters "
        f"({trained / whole:.2%}) are trained, on {world.size} x {world.device.type}",
        f"{len(made.dataset)} items, {total} steps, {what}",
    ]
    if world.device.type == "cpu" and whole > LARGE:
        lines.append(
            "warning: torch sees no GPU here, and a model of this size takes days on a CPU; `sanarl doctor` says why"
        )
    lines += [remark] if (remark := stretched(policy.model, config)) else []
    lines += made.dataset.notes
    if made.watch is not None:
        fixed = made.watch.held_out
        lines.append(
            f"guards: {len(fixed.prompts)} fixed prompts x {fixed.num_samples} samples every {made.watch.every} steps"
        )
    if config.gpus != world.size:
        lines.append(
            f"the preset is written for {config.gpus} GPU(s) and runs on {world.size} rank(s): "
            "the same numbers, another duration"
        )
    lines.append(made.plan.line())
    if config.task == "flowgrpo":
        lines.append(path_memory(made))
    if not config.train.ckpt.enable_checkpoint:
        lines.append("train.ckpt.enable_checkpoint = false: neither checkpoints nor exports will be written")
    return lines


def _samples(config: Config) -> str:
    """How many samples a prompt gets, and how many of them train."""
    train, drawn, first = config.rollout.n_generation, config.regenerated, config.candidates
    said = f"{train} samples"
    if config.rollout.preview.num_steps:
        return f"{first} previews, {drawn} drawn in full, {train} trained"
    return said if drawn == train else f"{drawn} samples of which {train} train"


def memory(made: Parts) -> list[str]:
    """What takes how much of the device, as predicted."""
    assert made.plan.prediction is not None, "asked before anything was predicted"
    where = "for this GPU" if made.world.device.type == "cuda" else "for a GPU; there is none here"
    return [f"predicted {where}, by part:", *made.plan.prediction.lines()]


def measured_memory(made: Parts, lines: list[dict[str, float]]) -> list[str]:
    """The peak of the steps that were taken, against the prediction; nothing without a GPU."""
    peaks = [line["memory/peak_gib"] * 2**30 for line in lines if "memory/peak_gib" in line]
    if not peaks or made.plan.prediction is None:
        return []
    predicted = made.plan.prediction.peak
    return [f"peak memory of {len(peaks)} step(s): {size(max(peaks))}, {max(peaks) / predicted:.0%} of the prediction"]


def path_memory(made: Parts) -> str:
    """Host memory that the recorded path of a rollout takes on this rank, twice while it is put together."""
    setup = settings.rl_setup(made.config, made.model.flow_shift)
    how = setup.sampler.stochastic
    assert how is not None, "asked for the path of a sampler without stochastic steps"
    samples = len(made.world.rows(made.config.samples_per_step))
    needed = 2 * samples * how.sample_bytes(made.model.latent_shape)
    free = free_memory()
    verdict = "" if free is None else f" of {size(free)} free: {'enough' if needed < free else 'NOT ENOUGH'}"
    return (
        f"the path of a rollout ({samples} samples a rank, {how.window} of {setup.sampler.num_steps} steps stochastic) "
        f"takes up to {size(needed)} of host memory{verdict}"
    )


def save_bytes(made: Parts, job: Job) -> int:
    """Bytes of a checkpoint and an export together, about: all value sets, two moments, the export's values.

    Before the first step the optimiser has no moments yet, so they are counted by what they will be.
    """
    trained = checkpoint.num_bytes([m.detach() for m in job.policy.masters])
    moments = 2 * trained
    others = sum(checkpoint.num_bytes(part.state_dict()) for name, part in job.state().items() if name != "optimizer")
    if not made.config.train.ckpt.export_safetensors:
        return moments + others
    if made.config.policy.lora is not None:
        return moments + others + trained
    modules = [part for part in made.model.pipeline.components.values() if isinstance(part, nn.Module)]
    return moments + others + sum(checkpoint.num_bytes(list(module.state_dict().values())) for module in modules)


def costs(made: Parts, seconds: float, save_bytes_: int) -> list[str]:
    """Time and disk that the whole run takes, from one measured step."""
    config = made.config
    total = made.total_steps
    lines = [f"a step took {seconds:.2f} s here, so {total} steps take about {_duration(seconds * total)}"]
    if made.held_out is not None:
        count = total // config.validation.freq + config.validation.val_before_train
        lines[0] += f", and {count} evaluation(s) of {len(made.held_out)} samples come on top"
    saving = settings.saving(config, len(made.dataset))
    if saving.enabled:
        saves = -(-total // saving.every)
        kept = saves if saving.max_keep <= 0 else min(saves, saving.max_keep)
        place = Path(config.train.output_dir).absolute()
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        needed = (kept + 1) * save_bytes_
        verdict = "enough" if needed < free else "NOT ENOUGH"
        lines.append(
            f"a save takes about {size(save_bytes_)}; {kept} kept and one being written take {size(needed)} of "
            f"{size(free)} free: {verdict}"
        )
    return lines


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
