"""Reference: the definition of a permutation, and numbers written down once."""

import subprocess
import sys

import pytest

from sanarl.data.order import picks


@pytest.mark.parametrize("n", [1, 2, 7, 100])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_every_epoch_is_a_permutation(n, seed):
    for epoch in range(5):
        assert sorted(picks(n, epoch * n, n, seed, shuffle=True)) == list(range(n))


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_range_in_pieces_gives_the_same_numbers(shuffle):
    whole = picks(13, 0, 100, 5, shuffle)
    for piece in (1, 3, 13, 17):
        assert [i for start in range(0, 100, piece) for i in picks(13, start, piece, 5, shuffle)][:100] == whole
    assert picks(13, 60, 40, 5, shuffle) == whole[60:]


def test_without_shuffling_items_come_in_order():
    assert picks(3, 1, 6, 0, shuffle=False) == [1, 2, 0, 1, 2, 0]


def test_epochs_and_seeds_differ():
    epochs = [tuple(picks(50, e * 50, 50, seed, shuffle=True)) for e in range(3) for seed in range(3)]
    assert len(set(epochs)) == len(epochs)


def test_every_place_is_equally_likely():
    """Item 0 over 4000 epochs of 4: each place is taken 1000 times give or take five standard deviations (27.4)."""
    counts = [0] * 4
    for epoch in range(4000):
        counts[picks(4, epoch * 4, 4, 9, shuffle=True).index(0)] += 1
    assert all(abs(count - 1000) < 5 * 27.4 for count in counts)


def test_the_numbers_stay_what_they_are_in_any_process():
    """A change here would change every run that is resumed."""
    code = "import numpy as np, random; np.random.seed(7); random.seed(7)\n"
    code += "from sanarl.data.order import picks; print(picks(10, 5, 12, 42, True))"
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert fresh == str(picks(10, 5, 12, 42, shuffle=True)) == "[6, 7, 3, 2, 0, 6, 5, 7, 8, 0, 4, 9]"


@pytest.mark.parametrize(("n", "start", "count"), [(0, 0, 1), (1, -1, 1), (1, 0, -1)])
def test_impossible_requests_are_refused(n, start, count):
    with pytest.raises(ValueError, match="picks needs"):
        picks(n, start, count, 0, shuffle=True)
