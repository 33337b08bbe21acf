"""Rules between the keys of Flow-GRPO's stochastic steps."""

from collections.abc import Iterator, Set

from sanarl.config.faults import Finding, fault, shown
from sanarl.config.schema.root import Config

LEAST_NOISE = 1e-4
"""Smaller noise is lost in the rounding of float32 latents, and far below it densities are no numbers."""
_SAMPLE, _TRAINER = "policy.diffusers.sample", "train.train_policy.trainer_type"


def deterministic(config: Config, _: Set[str]) -> Iterator[Finding]:
    """Only Flow-GRPO takes stochastic steps."""
    if config.policy.diffusers.sample.deterministic_sampling is False:
        text = "found false; accepted true: samples follow the ODE, only flow_grpo's rollouts take stochastic steps"
        yield fault(f"{_SAMPLE}.deterministic_sampling", text, _TRAINER)


def stochastic(config: Config, _: Set[str]) -> Iterator[Finding]:
    """Flow-GRPO's steps: there are some, they are noisy, and they end before the last."""
    sample, steps = config.policy.diffusers.sample, config.policy.diffusers.sample.num_steps
    last, number = f"{_SAMPLE}.sde_window_range", f"{_SAMPLE}.num_steps"
    if sample.deterministic_sampling:
        text = "found true; accepted false: flow_grpo learns from stochastic steps"
        yield fault(f"{_SAMPLE}.deterministic_sampling", text, _TRAINER)
    most = 1.0 if sample.sde_type == "cps" else 10.0
    if not LEAST_NOISE <= sample.noise_level <= most:
        text = f"found {sample.noise_level}; accepted {LEAST_NOISE:g} to {most:g} for {sample.sde_type}"
        yield fault(f"{_SAMPLE}.noise_level", text, f"{_SAMPLE}.sde_type")
    if sample.solver == "dpm2":
        text = 'found "dpm2"; accepted "euler": with flow_grpo the steps that are not stochastic go straight'
        yield fault(f"{_SAMPLE}.solver", text, _TRAINER)
    if steps < 2:
        yield fault(number, f"found {steps}; accepted 2 or more: the last step is never stochastic")
        return
    held = config.stochastic_steps
    if not held or held.stop > steps - 1:
        text = f"found {shown(sample.sde_window_range)}; accepted [first, end] with first < end <= {steps - 1}"
        yield fault(last, f"{text}: the last of {number} = {steps} steps is never stochastic", number)
    elif config.sde_window > len(held):
        text = f"found {config.sde_window}; accepted at most the {len(held)} steps from {held.start} to {held.stop - 1}"
        yield fault(f"{_SAMPLE}.sde_window_size", text, last, number)
    kind = config.policy.diffusers.weight_copy_decay_type
    if kind:
        key = "policy.diffusers.weight_copy_decay_type"
        yield fault(key, f"found {kind}; accepted 0: flow_grpo samples with the learner's values", _TRAINER)
