"""A prediction of memory in words and numbers."""

from dataclasses import dataclass
from typing import Any

from sanarl.models.checkpointing import Checkpointing
from sanarl.runtime.session import size

YIELDING = ("encoding of media", "rollout: decoding", "evaluation: decoding")
"""Phases of the autoencoder."""


@dataclass(frozen=True)
class Prediction:
    """Bytes on a device."""

    held: dict[str, int]
    """Always there, by part."""
    phases: dict[str, int]
    """What each phase takes besides."""
    mini_batch: int
    checkpointing: Checkpointing

    @property
    def peak(self) -> int:
        """At the worst moment."""
        return sum(self.held.values()) + max(self.phases.values(), default=0)

    @property
    def firm_peak(self) -> int:
        """The same without the autoencoder, which works on single samples, then in tiles, when memory runs out."""
        firm = [value for name, value in self.phases.items() if name not in YIELDING]
        return sum(self.held.values()) + max(firm, default=0)

    @property
    def worst(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=lambda name: self.phases[name])

    def lines(self) -> list[str]:
        """For people: a line for what is held, one for the phases."""
        always = ", ".join(f"{name} {size(value)}" for name, value in self.held.items())
        besides = ", ".join(
            f"{name} {size(value)}" for name, value in sorted(self.phases.items(), key=lambda item: -item[1])
        )
        return [
            f"  always there {size(sum(self.held.values()))}: {always}",
            f"  besides, one at a time: {besides}",
        ]

    def record(self) -> dict[str, Any]:
        """For files."""
        return {"peak": self.peak, "worst_phase": self.worst, "held": self.held, "phases": self.phases}
