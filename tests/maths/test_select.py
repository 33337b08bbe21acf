import pytest
import torch

from sanarl.maths.select import MODES, kendall, select, spearman, top_overlap

REWARDS = torch.tensor([0.1, 0.9, 0.5, 0.3, 0.7, 0.2])
ONE_GROUP = torch.zeros(6, dtype=torch.int64)


def kept(rewards, keep, mode, groups=None, key=(0, 1)):
    groups = torch.zeros(len(rewards), dtype=torch.int64) if groups is None else groups
    return select(rewards, groups, keep, int((groups == groups[0]).sum()), mode, *key).tolist()


def test_best_worst_keeps_the_highest_half_and_the_lowest_rest():
    assert kept(REWARDS, 4, "best_worst") == [0, 1, 4, 5]
    assert kept(REWARDS, 3, "best_worst") == [0, 1, 5]  # one best, two worst
    assert kept(REWARDS, 1, "best_worst") == [0]


def test_mean_deviation_keeps_the_farthest_from_the_mean():
    rewards = torch.tensor([0.0, 1.0, 1.2, 1.1, 0.9, 3.0])  # mean 1.2
    assert kept(rewards, 3, "mean_deviation") == [0, 4, 5]


def test_extremes_random_keeps_both_ends_and_draws_the_rest():
    draws = [kept(REWARDS, 4, "extremes_random", key=(0, step)) for step in range(20)]
    assert all({0, 1} <= set(rows) for rows in draws)
    assert len({tuple(rows) for rows in draws}) > 1
    assert kept(REWARDS, 1, "extremes_random") == [1]
    assert kept(REWARDS, 2, "extremes_random") == [0, 1]


def test_random_is_a_function_of_key_and_group_alone():
    assert kept(REWARDS, 3, "random") == kept(-REWARDS, 3, "random")
    assert len({tuple(kept(REWARDS, 3, "random", key=(0, step))) for step in range(20)}) > 5
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    alone = select(REWARDS[3:], torch.ones(3, dtype=torch.int64), 2, 3, "random", 0, 1) + 3
    assert set(alone.tolist()) <= set(kept(REWARDS, 2, "random", groups))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("keep", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("rewards", [REWARDS, torch.ones(6), torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 1.0])])
def test_every_mode_keeps_distinct_rows_and_as_many_as_asked(mode, keep, rewards):
    rows = kept(rewards, keep, mode)
    assert len(rows) == len(set(rows)) == keep
    assert rows == sorted(rows)


@pytest.mark.parametrize("mode", MODES)
def test_a_single_sample_and_groups_of_different_size(mode):
    """A prompt that stands twice in a step has twice the rows and keeps twice as many."""
    assert kept(torch.tensor([0.3]), 1, mode) == [0]
    groups = torch.tensor([2, 0, 2, 2, 0, 2])  # neither adjacent nor in order
    rows = select(REWARDS, groups, 1, 2, mode, 0)
    assert (groups[rows] == 0).sum() == 1
    assert (groups[rows] == 2).sum() == 2


def test_a_group_of_equal_prompts_is_selected_as_a_whole():
    """Rows 0..2 and 3..5 of one group: the two best of all six, not of each half."""
    assert kept(torch.tensor([9.0, 8, 7, 1, 2, 3]), 4, "best_worst") == [0, 1, 3, 4]


def test_rewards_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        kept(torch.tensor([0.1, float("nan")]), 1, "best_worst")
    for keep in (0, 7):
        with pytest.raises(ValueError, match=f"{keep} rows of 6"):
            kept(REWARDS, keep, "random")


def test_rank_correlations_against_scipy():
    from scipy import stats

    generator = torch.Generator().manual_seed(0)
    a = torch.randn(24, generator=generator).mul(2).round() / 2  # with ties
    b = a + torch.randn(24, generator=generator)
    groups = torch.zeros(24, dtype=torch.int64)
    assert spearman(a, b, groups) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert kendall(a, b, groups) == pytest.approx(stats.kendalltau(a, b).statistic)


def test_rank_measures_in_closed_cases():
    """The same order 1, the reverse -1; averaged over groups; a group without spread says nothing."""
    a, b = torch.tensor([1.0, 2, 3, 1, 2, 3, 5, 5]), torch.tensor([1.0, 2, 3, 3, 2, 1, 1, 2])
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    for measure in (spearman, kendall):
        assert measure(a[:3], b[:3], groups[:3]) == pytest.approx(1)
        assert measure(a[3:], b[3:], groups[3:]) == pytest.approx(-1)
        assert measure(a, b, groups) == pytest.approx(0)
        assert measure(a[6:], b[6:], groups[6:]) != measure(a[6:], b[6:], groups[6:])  # nan
    assert top_overlap(a, b, groups, 1) == pytest.approx((1 + 0 + 0) / 3)
    assert top_overlap(a[:3], b[:3], groups[:3], 9) == 1
