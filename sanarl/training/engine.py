"""What samples rollouts: the policy itself, and copies of it in other modes."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.models.base import Source
from sanarl.models.policy import Policy
from sanarl.models.replicas import FORMATS, Replica, ReplicaSettings, compiled_graphs
from sanarl.rollout.generate import shrunk
from sanarl.runtime import engines

GIB = 2**30


@dataclass(frozen=True)
class Decoding:
    """How the decoder is compiled."""

    batch: int
    scales: tuple[float, ...]
    """Sides of media, of the full one."""


@dataclass
class Engine:
    """Sources of samples by mode; ``peft`` is the policy."""

    policy: Policy
    replicas: dict[str, Replica] = field(default_factory=dict)
    decoding: Decoding | None = None
    _counted: int = field(default=0, init=False)

    def ready(self, mode: str) -> Source:
        """What samples in a mode, under the values that the policy has in use."""
        if mode == "peft":
            return self.policy
        self.replicas[mode].sync()
        return self.replicas[mode]

    def warm_up(self) -> list[str]:
        """Compile, check every copy with an adapter that cannot be overlooked, and say what it is.

        Raises:
            UserError: when a copy does not follow the policy.
        """
        lines = []
        for mode, replica in self.replicas.items():
            warm = replica.warm_up()
            lines.append(
                f"rollout engine {mode}: {replica.report}; {replica.num_bytes / GIB:.2f} GiB; "
                f"warm-up {warm.seconds:.1f} s, {warm.graphs} graphs compiled; "
                f"a synthetic adapter changes it as the model, within {warm.error:.2%}"
            )
            if mode == "compile_nvfp4":
                lines.append(
                    "rollout engine compile_nvfp4: this path has never been run by its authors; compare rewards"
                )
        if self.decoding is not None:
            lines.append(self._warm_decoder(self.decoding))
        self._counted = compiled_graphs() if self._compiles else 0
        return lines

    def _warm_decoder(self, how: Decoding) -> str:
        model, before, started = self.policy.model, compiled_graphs(), time.perf_counter()
        for scale in how.scales:
            latents = torch.zeros(how.batch, *model.latent_shape, device=model.transformer.device)
            model.decode(shrunk(latents, scale)).cpu()
        seconds, graphs = time.perf_counter() - started, compiled_graphs() - before
        return f"decoder: compiled, channels last; warm-up {seconds:.1f} s, {graphs} graphs compiled"

    @property
    def _compiles(self) -> bool:
        return self.decoding is not None or any(each.settings.compiles for each in self.replicas.values())

    def write_report(self, path: Path) -> None:
        """Every linear layer of every copy with the format that it runs in."""
        if self.replicas:
            parts = ["\n".join([f"[{mode}]", *replica.report.lines()]) for mode, replica in self.replicas.items()]
            path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")

    def recompiled(self) -> int:
        """Graphs that were compiled since this was last asked, or since the warm-up."""
        if not self._compiles:
            return 0
        before, self._counted = self._counted, compiled_graphs()
        return self._counted - before


def check(config: Config) -> None:
    """Look, before any model is loaded, whether this machine can sample as a configuration asks.

    Raises:
        UserError: naming for every key what is missing, how to get it and what to use instead.
    """
    if not engines.needs(config):
        return
    faults = [f"{key}: {lack}" for key, lack in engines.lacking(config, engines.machine()).items()]
    if faults:
        raise UserError("\n".join(faults))


def check_scale(config: Config, cells: tuple[int, ...]) -> None:
    """Latents (..., H, W) of a preview that is decoded at half size must have halves.

    Raises:
        UserError: when they have not.
    """
    preview = config.rollout.preview
    if config.is_rl and preview.num_steps and any(edge * preview.decode_scale % 1 for edge in cells[-2:]):
        raise UserError(
            f"rollout.preview.decode_scale: found {preview.decode_scale}; latents of {cells[-2]} x {cells[-1]} cells "
            "cannot be halved: accepted 1.0, or an inference_size of twice as many pixels"
        )


def build(policy: Policy, settings: list[ReplicaSettings], decoding: Decoding | None = None) -> Engine:
    """One copy for each of ``settings``, and the decoder compiled where that is asked for.

    Raises:
        UserError: when a copy is not possible, or a mode in fewer bits would change no layer.
    """
    if decoding is not None:
        policy.model.compile_decoder(decoding.batch)
    engine = Engine(policy, {each.mode: Replica(policy, each) for each in settings}, decoding)
    for mode, replica in engine.replicas.items():
        if FORMATS[replica.settings.mode] is not None and not replica.report.replaced:
            whole = "compile" if replica.settings.compiles else "peft"
            raise UserError(
                f"rollout.engine: min_dim = {replica.settings.rule.min_dim} and skip_modules leave no layer of this "
                f'model in fewer bits, so that mode "{mode}" would be none; accepted: a smaller min_dim, fewer '
                f'skip_modules, or mode = "{whole}"'
            )
    return engine
