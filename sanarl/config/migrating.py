"""Fills the tables of docs/migrating.md from the schema: ``python -m sanarl.config.migrating [--check]``."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sanarl.config.docs import markdown
from sanarl.config.fates import table
from sanarl.config.hints import HINTS

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"


class Value(NamedTuple):
    """A setting of Sol-RL's: its name there, the row of ``HINTS`` that says where it goes, and its values."""

    theirs: str
    hint: str
    base: str
    sana: str
    """Where the SANA configuration differs from the base."""
    sd3: str = ""
    """Where that of SD3.5-L does."""
    flux: str = ""
    """Where that of FLUX.1 does."""


SOL_RL: tuple[Value, ...] = (
    Value("train.learning_rate", "learning_rate", "3e-4", ""),
    Value("train.max_grad_norm", "max_grad_norm", "0.002", "1.0", "", "1.0"),
    Value("train.adam_weight_decay", "adam_weight_decay", "1e-4", ""),
    Value("train.adam_epsilon", "adam_epsilon", "1e-8", ""),
    Value("train.adam_beta1, adam_beta2", "betas", "0.9, 0.999", ""),
    Value("train.batch_size (a GPU)", "train.batch_size", "1", "16", "4", "12"),
    Value("train.gradient_accumulation_steps", "gradient_accumulation_steps", "1", "one optimiser step a rollout"),
    Value("train.num_inner_epochs", "num_inner_epochs", "1", ""),
    Value("train.adv_clip_max", "adv_clip_max", "5", ""),
    Value("train.adv_mode", "adv_mode", "all", ""),
    Value("train.timestep_fraction", "timestep_fraction", "0.6", "", "", "0.4"),
    Value("train.beta", "train.beta", "1e-4", ""),
    Value("beta", "beta", "1.0", ""),
    Value("decay_type", "decay_type", "1", ""),
    Value("train.ema", "ema", "true, decay 0.9", ""),
    Value("mixed_precision", "mixed_precision", "bf16", ""),
    Value("rollout_sample_num_steps", "rollout_sample_num_steps", "10", ""),
    Value("rollout_sample_guidance_scale", "rollout_sample_guidance_scale", "1.0", ""),
    Value("sample.deterministic", "sample.deterministic", "", "true", "true", "true"),
    Value("sample.num_image_per_prompt", "num_image_per_prompt", "24", "24 or 96", "24 or 96", "24 or 96"),
    Value("sample.best_of_n", "best_of_n", "24", ""),
    Value("sample.full_rollout_num", "full_rollout_num", "", "best_of_n", "best_of_n", "best_of_n"),
    Value("sample.stage1_select_mode", "stage1_select_mode", "", "best_worst", "best_worst", "best_worst"),
    Value("sample.stage2_select_mode", "stage2_select_mode", "", "best_worst", "best_worst", "best_worst"),
    Value("sample.rollout_batch_size", "rollout_batch_size", "", "24", "24", "24"),
    Value("preview_step", "preview_step", "0", "0 or 6", "0 or 6", "0 or 6"),
    Value("preview_model", "preview_model", "peft", "compile_nvfp4", "compile_nvfp4", "compile_nvfp4"),
    Value(
        "fullrollout_model",
        "fullrollout_model",
        "peft",
        "compile, compile_nvfp4",
        "compile, compile_nvfp4",
        "compile, compile_nvfp4",
    ),
    Value("compile_mode", "compile_mode", "max-autotune-no-cudagraphs", ""),
    Value("nvfp4_skip_modules", "nvfp4_skip_modules", "none", "our default", "in the presets", "in the presets"),
    Value("nvfp4_min_dim", "nvfp4_min_dim", "0", "2240", "2432", "1000"),
    Value("native_model_path, native_model_source", "native_model_path", "", "yitongl/SANA_LinearFFN"),
    Value("native_config", "native_config", "", "Sana1.0_1600M_linear.yaml"),
    Value("sample.test_batch_size", "test_batch_size", "1", "16", "16", "16"),
    Value("train.lora_rank", "lora_rank", "32", ""),
    Value("train.lora_init_weights", "lora_init_weights", "true", "gaussian", "gaussian", "gaussian"),
    Value("resolution", "resolution", "", "1024", "1024", "512"),
    Value("per_prompt_stat_tracking", "per_prompt_stat_tracking", "true", ""),
    Value("prompt_fn", "prompt_fn", "general_ocr", ""),
    Value("reward_fn", "reward_fn", '{"pickscore": 1.0}', ""),
    Value("resume_from", "resume_from", "", ""),
    Value("save_dir", "save_dir", "logs/nft_slurm/NAME", ""),
    Value("run_name", "run_name", "", ""),
)


def tables() -> dict[str, str]:
    """Name of a place in the page -> the table that stands there."""
    return {"cosmos-unsupported": _unsupported(), "cosmos-idle": _idle(), "sol-rl": _sol_rl()}


def _unsupported() -> str:
    """Keys by what is said of them, so that a sentence stands there once."""
    reasons: dict[str, list[str]] = {}
    for row in table():
        if row.fate == "unsupported value":
            reasons.setdefault(row.detail, []).append(f"`{row.key}`")
    return markdown(["keys", "values"], [[", ".join(keys), detail] for detail, keys in reasons.items()])


def _idle() -> str:
    """Keys without effect, a row for every table."""
    owners: dict[str, list[str]] = {}
    for row in table():
        if row.fate == "no effect":
            owner, _, name = row.key.rpartition(".")
            owners.setdefault(owner or "(top)", []).append(f"`{name}`")
    return markdown(["table", "keys"], [[f"`{owner}`", ", ".join(names)] for owner, names in owners.items()])


def _sol_rl() -> str:
    rows = []
    for value in SOL_RL:
        hint = HINTS[value.hint]
        keys = ", ".join(f"`{key}`" for key in hint.keys)
        rows.append([f"`{value.theirs}`", value.base, value.sana, value.sd3, value.flux, keys, hint.remark])
    return markdown(["their name", "base", "SANA", "SD3.5-L", "FLUX.1", "here", "remark"], rows)


def page(text: str) -> str:
    """The page with fresh tables between its marks."""
    found = tables()

    def fresh(mark: re.Match[str]) -> str:
        return f"<!-- {mark[1]}: made from the schema -->\n\n{found[mark[1]]}\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+): made from the schema -->\n.*?<!-- end -->", fresh, text, flags=re.DOTALL)


def missing(text: str) -> Iterator[str]:
    """Tables that the page has no place for."""
    return (name for name in tables() if f"<!-- {name}: made from the schema -->" not in text)


def main(arguments: list[str]) -> int:
    """Write the tables, or with --check say whether those on disk are these."""
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in arguments:
        good = page(text) == text and not list(missing(text))
        print(f"{PAGE.name}: {'as the schema says' if good else 'differs from the schema: run this without --check'}")
        return 0 if good else 1
    PAGE.write_text(page(text), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
