import statistics

import pytest
import torch

from sanarl.maths.advantage import group_advantages, group_statistics


def numbers(prompts):
    """Group numbers that are neither dense nor in order, as ranks may leave them."""
    order = {prompt: 7 * n + 3 for n, prompt in enumerate(sorted(set(prompts), reverse=True))}
    return torch.tensor([order[prompt] for prompt in prompts])


@pytest.mark.parametrize("global_std", [True, False])
def test_golden_advantages(golden, global_std):
    # Reference: published advantages of three groups of different sizes.
    case = golden[f"advantages_global_std_{global_std}"]
    found = group_advantages(torch.tensor(case["rewards"]), numbers(case["prompts"]), global_std)
    torch.testing.assert_close(found, torch.tensor(case["advantages"], dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("global_std", [True, False])
def test_advantages_against_a_plain_loop(global_std):
    # Reference: Python's statistics module, group by group, in any order of rows.
    g = torch.Generator().manual_seed(0)
    groups = torch.randint(0, 5, (37,), generator=g)
    rewards = torch.rand(37, dtype=torch.float64, generator=g)
    pairs = list(zip(rewards.tolist(), groups.tolist(), strict=True))
    found = group_advantages(rewards, groups, global_std)
    assert found.dtype == torch.float64
    for (reward, group), advantage in zip(pairs, found.tolist(), strict=True):
        members = [r for r, other in pairs if other == group]
        std = statistics.pstdev(rewards.tolist() if global_std else members)
        assert advantage == pytest.approx((reward - statistics.fmean(members)) / (std + 1e-4), abs=1e-12)


def test_equal_rewards_have_advantage_zero():
    assert group_advantages(torch.full((4,), 0.3), torch.tensor([0, 0, 1, 1]), False).abs().max() < 1e-12


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"\(4,\) rewards against \(3,\)"):
        group_advantages(torch.zeros(4), torch.zeros(3, dtype=torch.int64), True)


def test_statistics_of_groups():
    # Reference: by hand. Groups: {1, 3}, {5, 5}, {2, 2, 8}; population deviations 1, 0, sqrt(8).
    rewards = torch.tensor([1.0, 5.0, 3.0, 2.0, 5.0, 2.0, 8.0])
    s = group_statistics(rewards, torch.tensor([4, 9, 4, 0, 9, 0, 0]))
    assert s.mean == pytest.approx(26 / 7)
    assert (s.max, s.min) == (pytest.approx((3 + 5 + 8) / 3), pytest.approx((1 + 5 + 2) / 3))
    assert s.range == pytest.approx((2 + 0 + 6) / 3)
    assert s.std_mean == pytest.approx((1 + 0 + 8**0.5) / 3)
    assert s.zero_std_ratio == pytest.approx(1 / 3)
    assert (s.group_size, s.num_groups) == (pytest.approx(7 / 3), 3)


def test_golden_group_sizes(golden):
    # Reference: published mean group size and number of prompts.
    case = golden["advantages_global_std_True"]
    s = group_statistics(torch.tensor(case["rewards"]), numbers(case["prompts"]))
    assert [s.group_size, s.num_groups] == pytest.approx(case["group_size_and_prompts"])
