"""Intervals for means and for differences of pairs (Student, Biometrika 6, 1908)."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Mean:
    """A mean and its two-sided interval; without one where there is a single value."""

    mean: float
    low: float | None
    high: float | None
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def t_interval(values: np.ndarray, level: float = 0.95) -> Mean:
    """Mean of independent values with Student's interval: mean -/+ t((1 + level) / 2, n - 1) * s / sqrt(n).

    For the difference of pairs give the differences: what pairs have in common, here the prompt and its noise,
    cancels. The interval holds exactly for normal differences and, by the central limit theorem, about for many.

    Args:
        values: (n,) one number a prompt.
        level: the share of such intervals that hold the true mean.

    Raises:
        ValueError: when there is no value.
    """
    values = np.asarray(values, dtype=np.float64)
    n = len(values)
    if n == 0:
        raise ValueError("the mean of nothing")
    mean = float(values.mean())
    if n == 1:
        return Mean(mean, None, None, n)
    half = float(stdtrit(n - 1, (1 + level) / 2)) * float(values.std(ddof=1)) / math.sqrt(n)
    return Mean(mean, mean - half, mean + half, n)
