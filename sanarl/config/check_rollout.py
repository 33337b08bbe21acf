"""Rules between the keys of pools, previews and rollout engines."""

from collections.abc import Iterator, Set

from sanarl.config.faults import Finding, fault, shown
from sanarl.config.schema.root import Config

_ROLLOUT, _PREVIEW, _ENGINE = "rollout", "rollout.preview", "rollout.engine"
_TRAINER = "train.train_policy.trainer_type"
_ENGINE_KEYS = ("mode", "compile_mode", "skip_modules", "min_dim", "decode_dtype", "decode_compile")
ONLY_RL = (
    "rollout.n_candidates",
    "rollout.select",
    *(f"{_ENGINE}.{name}" for name in _ENGINE_KEYS),
    *(f"{_PREVIEW}.{name}" for name in ("num_steps", "mode", "select", "n_regenerate", "decode_scale")),
)


def pools(config: Config, _: Set[str]) -> Iterator[Finding]:
    """A pool holds what is drawn again, and that holds what trains."""
    rollout, preview = config.rollout, config.rollout.preview
    trained = f"{_ROLLOUT}.n_generation"
    if config.candidates < rollout.n_generation:
        text = f"found {config.candidates}; accepted at least {trained} = {rollout.n_generation}, which train"
        yield fault(f"{_ROLLOUT}.n_candidates", text, trained)
        return
    again = preview.n_regenerate
    if again is not None and not rollout.n_generation <= again <= config.candidates:
        text = f"found {again}; accepted {rollout.n_generation} (what trains) to {config.candidates} (candidates)"
        yield fault(f"{_PREVIEW}.n_regenerate", text, trained, f"{_ROLLOUT}.n_candidates")


def engines(config: Config, _: Set[str]) -> Iterator[Finding]:
    """What an engine cannot do."""
    modes = ((f"{_ENGINE}.mode", config.rollout.engine.mode), (f"{_PREVIEW}.mode", config.rollout.preview.mode))
    for key, mode in modes:
        if mode == "peft":
            continue
        if config.policy.diffusers.is_video:
            text = f'found {shown(mode)}; accepted "peft": copies for sampling are made of models for pictures'
            yield fault(key, text, "policy.diffusers.is_video")
    if config.rollout.engine.decode_compile and config.policy.diffusers.is_video:
        text = "found true; accepted false: the decoder is compiled for pictures only"
        yield fault(f"{_ENGINE}.decode_compile", text, "policy.diffusers.is_video")
    if config.task != "flowgrpo":
        return
    why = "flow_grpo learns from every step of the samples that it draws with the model that is trained"
    asked: list[tuple[str, str | int, str | int]] = [(key, mode, "peft") for key, mode in modes]
    asked.append((f"{_PREVIEW}.num_steps", config.rollout.preview.num_steps, 0))
    asked.append((f"{_ROLLOUT}.n_candidates", config.candidates, config.rollout.n_generation))
    for key, found, accepted in asked:
        if found != accepted:
            yield fault(key, f"found {shown(found)}; accepted {shown(accepted)}: {why}", _TRAINER)


def idle(config: Config) -> Iterator[str]:
    """Keys of the tables that this configuration has no use for."""
    rollout, modes = config.rollout, config.engine_modes
    if not any(mode.startswith("compile") for mode in modes):
        yield f"{_ENGINE}.compile_mode"
    if not any(mode.endswith(("fp8", "nvfp4")) for mode in modes):
        yield from (f"{_ENGINE}.skip_modules", f"{_ENGINE}.min_dim")
    if not rollout.preview.num_steps:
        yield from (f"{_PREVIEW}.{name}" for name in ("mode", "select", "n_regenerate", "decode_scale"))
    elif config.regenerated == config.candidates:
        yield f"{_PREVIEW}.select"
    if config.regenerated == rollout.n_generation:
        yield f"{_ROLLOUT}.select"
