import pytest
import torch
from scipy import stats

from sanarl.maths import draw

IDS = torch.tensor([5, 0, 17, 3])


def test_known_values():
    # Reference: written down once; every process, platform and version of sanarl must give them again.
    found = draw.normal(torch.tensor([0, 1]), (2,), 7, 1, "noise")
    torch.testing.assert_close(
        found, torch.tensor([[0.69850016, -0.92750204], [0.28738469, -1.97114825]]), rtol=0, atol=1e-6
    )
    assert draw.permutations(torch.tensor([3]), 6, 7, "sigma").tolist() == [[1, 4, 5, 3, 0, 2]]


@pytest.mark.parametrize(
    "function",
    [
        lambda ids: draw.normal(ids, (3, 2), 1, "noise"),
        lambda ids: draw.normal(ids, (), 1, "sigma"),
        lambda ids: draw.uniform(ids, 1, "caption"),
        lambda ids: draw.permutations(ids, 6, 1, "order"),
    ],
)
def test_a_draw_depends_on_the_id_alone(function):
    # Reference: the draw of the whole batch. Splits, order and the global random state change nothing.
    torch.manual_seed(0)
    whole = function(IDS)
    before = torch.get_rng_state()
    torch.rand(3)
    torch.manual_seed(9)
    assert torch.equal(torch.cat([function(IDS[:1]), function(IDS[1:])]), whole)
    assert torch.equal(function(IDS.flip(0)), whole.flip(0))
    torch.manual_seed(0)
    function(IDS)
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(row.flatten().tolist()) for row in whole}) == len(IDS)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda ids: draw.normal(ids, (3, 2), 1), (0, 3, 2)),
        (lambda ids: draw.uniform(ids, 1), (0,)),
        (lambda ids: draw.permutations(ids, 6, 1), (0, 6)),
    ],
)
def test_no_ids_give_no_rows(function, shape):
    # A rank may have no rows of a step.
    assert function(torch.zeros(0, dtype=torch.int64)).shape == shape


def test_keys_are_told_apart():
    ids = torch.tensor([1])
    keys = [(1, 2), (12,), (1, "2"), ("1", 2), (2, 1), (1, 2, "noise"), (1, 2, "noise", 0)]
    assert len({draw.normal(ids, (), *key).item() for key in keys}) == len(keys)


def test_distributions():
    # Reference: scipy's normal and uniform distributions (Kolmogorov-Smirnov on fixed draws, one an id).
    ids = torch.arange(2000)
    assert stats.kstest(draw.normal(ids, (), 0, "n").numpy(), stats.norm.cdf).pvalue > 0.01
    u = draw.uniform(ids, 0, "u")
    assert stats.kstest(u.numpy(), stats.uniform.cdf).pvalue > 0.01
    assert ((u >= 0) & (u < 1)).all()


def test_permutations_are_permutations_and_all_places_are_alike():
    # Reference: 4000 draws of range(5) hold every number in every place 800 times, deviation sqrt(4000 * .2 * .8) = 25.
    table = draw.permutations(torch.arange(4000), 5, "order")
    assert torch.equal(table.sort(1).values, torch.arange(5).expand(4000, 5))
    counts = torch.stack([torch.bincount(column, minlength=5) for column in table.T])
    assert (counts - 800).abs().max() < 5 * 25
