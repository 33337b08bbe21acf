"""Items of a step, by number: the data position is the step itself, so there is no iterator to save."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from sanarl.data.order import picks


class Loader:
    """Takes items of a dataset in a seeded order, epochs laid end to end; reads ahead when it has workers."""

    def __init__(
        self,
        dataset: Sequence[dict[str, Any]],
        seed: int,
        shuffle: bool,
        workers: int,
        prefetch: int | None,
        stride: int,
    ):
        """Nothing is read yet.

        Args:
            dataset: items by index.
            seed: of the order. shuffle: a new order every epoch; otherwise the dataset's own.
            workers: threads that read; 0 reads in the caller.
            prefetch: steps read ahead (1 when None); without workers none.
            stride: items of a step over all ranks: where the next step starts.
        """
        self._dataset, self._seed, self._shuffle, self._stride = dataset, seed, shuffle, stride
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="data") if workers else None
        self._ahead = prefetch or 1
        self._started: dict[tuple[int, range], list[Future[dict[str, Any]]]] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def indices(self, start: int, rows: Iterable[int]) -> list[int]:
        """Dataset indices of the items number ``start + row`` of the run."""
        return [picks(len(self._dataset), start + row, 1, self._seed, self._shuffle)[0] for row in rows]

    def take(self, start: int, rows: range) -> list[dict[str, Any]]:
        """The items number ``start + row`` of the run, for every row.

        Raises:
            UserError: from the dataset, naming the item.
        """
        if self._pool is None:
            return [self._dataset[i] for i in self.indices(start, rows)]
        wanted = self._start(start, rows)
        for ahead in range(1, self._ahead + 1):
            self._start(start + ahead * self._stride, rows)
        del self._started[(start, rows)]
        return [future.result() for future in wanted]

    def _start(self, start: int, rows: range) -> list[Future[dict[str, Any]]]:
        if (start, rows) not in self._started:
            assert self._pool is not None, "only asked for with workers"
            found = self.indices(start, rows)
            self._started[(start, rows)] = [self._pool.submit(self._dataset.__getitem__, i) for i in found]
        return self._started[(start, rows)]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
