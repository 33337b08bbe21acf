"""What samples rollouts: the policy itself, and copies of it in other modes."""

from dataclasses import dataclass, field
from pathlib import Path

from sanarl.config import Config
from sanarl.errors import UserError
from sanarl.models.base import Source
from sanarl.models.policy import Policy
from sanarl.models.replicas import Replica, ReplicaSettings, compiled_graphs
from sanarl.runtime import engines

GIB = 2**30


@dataclass
class Engine:
    """Sources of samples by mode; ``peft`` is the policy."""

    policy: Policy
    replicas: dict[str, Replica] = field(default_factory=dict)
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
        self._counted = compiled_graphs()
        return lines

    def write_report(self, path: Path) -> None:
        """Every linear layer of every copy with the format that it runs in."""
        if self.replicas:
            parts = ["\n".join([f"[{mode}]", *replica.report.lines()]) for mode, replica in self.replicas.items()]
            path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")

    def recompiled(self) -> int:
        """Graphs that were compiled since this was last asked, or since the warm-up."""
        if not any(replica.settings.compiles for replica in self.replicas.values()):
            return 0
        before, self._counted = self._counted, compiled_graphs()
        return self._counted - before


def check(config: Config) -> None:
    """Look, before any model is loaded, whether this machine can sample as a configuration asks.

    Raises:
        UserError: naming for every key what is missing, how to get it and what to use instead.
    """
    rollout = config.rollout
    asked = {"rollout.engine.mode": rollout.engine.mode}
    if rollout.preview.num_steps:
        asked["rollout.preview.mode"] = rollout.preview.mode
    if not config.is_rl or not any(engines.NEEDS[mode] for mode in asked.values()):
        return
    here = engines.machine()
    faults = [f"{key}: {fault}" for key, mode in asked.items() if (fault := engines.missing(mode, here)) is not None]
    if faults:
        raise UserError("\n".join(faults))


def build(policy: Policy, settings: list[ReplicaSettings]) -> Engine:
    """One copy for each of ``settings``.

    Raises:
        UserError: when a copy is not possible.
    """
    return Engine(policy, {each.mode: Replica(policy, each) for each in settings})
