"""Reference: scipy's paired t-test, tables of Student's t, and coverage on draws whose mean is known."""

import numpy as np
import pytest
from scipy import stats

from sanarl.maths.paired import t_interval


@pytest.mark.parametrize("n", [2, 3, 30, 500])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_the_interval_is_that_of_scipys_paired_test(n, level):
    rng = np.random.default_rng(n)
    before = rng.normal(size=n)
    after = before + rng.exponential(size=n)
    expected = stats.ttest_rel(after, before).confidence_interval(level)
    found = t_interval(after - before, level)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-12)
    assert found.mean == pytest.approx((after - before).mean(), rel=1e-14)
    assert found.n == n


def test_by_hand():
    # s = 2, n = 4: 3.182446 (t table, 3 degrees, 97.5 %) * 2 / 2 about the mean of 3.
    values = np.array([1.0, 3.0, 3.0, 5.0]) * 1.0
    s = np.sqrt(8 / 3)
    found = t_interval(values)
    assert (found.low, found.high) == pytest.approx((3 - 3.182446305 * s / 2, 3 + 3.182446305 * s / 2))
    assert found.excludes_zero
    assert not t_interval(np.array([-1.0, 1.0])).excludes_zero


def test_it_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [t_interval(row) for row in rng.normal(0.3, 2.0, size=(4000, 12))]
    held = np.mean([one.low <= 0.3 <= one.high for one in found])
    assert abs(held - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 4000)


def test_one_value_has_no_interval_and_equal_ones_a_point():
    assert t_interval(np.array([2.0])).low is None
    assert not t_interval(np.array([2.0])).excludes_zero
    point = t_interval(np.array([0.5, 0.5, 0.5]))
    assert (point.low, point.mean, point.high) == (0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="nothing"):
        t_interval(np.array([]))
