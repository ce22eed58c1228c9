"""The samples of a prefix as a PyTorch dataset."""

from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import IterableDataset, get_worker_info

from groundplane.platform.storage.samples import SampleIndex, read_samples
from groundplane.platform.storage.spec import StoreSpec
from groundplane.platform.storage.store import Store


class SampleDataset(IterableDataset[tuple[int, bytes]]):
    """`(position, bytes)` of this rank's samples in the order of the run, without end.

    The state to save is the number of samples that the whole run has trained; give it as `start`. A data
    loader that starts worker processes must start them by "spawn" or "forkserver": a store's threads do not
    live on in a forked child. Each worker opens the store for itself; the rank's positions go to its workers
    in turn.

    Args:
        spec: of the store.
        index: of the samples.
        seed: of the shuffle.
        rank: of this process.
        world_size: number of ranks.
        start: samples of the whole run that are done already; a multiple of world_size.
    """

    def __init__(
        self,
        spec: StoreSpec,
        index: SampleIndex,
        *,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        self._spec = spec
        self._index = index
        self._seed = seed
        self._first = start + rank
        self._world_size = world_size

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        worker = get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        with Store(self._spec) as store:
            yield from read_samples(
                store,
                self._index,
                seed=self._seed,
                start=self._first + number * self._world_size,
                stride=self._world_size * num_workers,
            )
