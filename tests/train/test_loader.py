import threading

import pytest

from sanarl.data.loading import Loader
from sanarl.data.order import picks
from sanarl.errors import UserError


class Items:
    """Numbers, and which were taken by which thread."""

    def __init__(self, n=10):
        self.n, self.taken = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index == 7:
            raise UserError("item 7 is broken")
        self.taken.append((index, threading.current_thread().name))
        return {"number": index}


def numbers(loader, step, rows, stride=4):
    return [item["number"] for item in loader.take((step - 1) * stride, rows)]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_take_the_steps_items(shuffle, workers):
    # Reference: the order of the run, a pure function of the position; two ranks take two items each.
    for step in (1, 2):
        wanted = [i % 7 for i in picks(7, (step - 1) * 4, 4, 3, shuffle)]
        got = []
        for rows in (range(0, 2), range(2, 4)):
            with Loader(Items(7), 3, shuffle, workers, 2 if workers else None, stride=4) as loader:
                got += numbers(loader, step, rows)
        assert got == wanted


def test_epochs_are_laid_end_to_end():
    with Loader(Items(3), 0, False, 0, None, stride=4) as loader:
        assert [numbers(loader, step, range(4)) for step in (1, 2)] == [[0, 1, 2, 0], [1, 2, 0, 1]]
        assert len(loader) == 3


def test_workers_read_ahead_and_every_item_once():
    items = Items(7)
    with Loader(items, 0, False, 2, 1, stride=2) as loader:
        first = numbers(loader, 1, range(2), stride=2)
        second = numbers(loader, 2, range(2), stride=2)
    assert (first, second) == ([0, 1], [2, 3])
    taken = [index for index, _ in items.taken]
    assert sorted(taken)[:4] == [0, 1, 2, 3]
    assert len(taken) == len(set(taken))
    assert all(thread.startswith("data") for _, thread in items.taken)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_data_set_comes_in_its_own_step(workers):
    with Loader(Items(8), 0, False, workers, None, stride=4) as loader:
        assert numbers(loader, 1, range(4)) == [0, 1, 2, 3]
        with pytest.raises(UserError, match="item 7 is broken"):
            numbers(loader, 2, range(4))
