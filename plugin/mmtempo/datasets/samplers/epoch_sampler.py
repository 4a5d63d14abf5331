"""Base class of samplers with finite epochs: rank, seed, epoch, and a start within an epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sized

from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler

from mmtempo.utils.checks import is_whole


class EpochSampler(Sampler):
    """A sampler whose order depends on (seed, epoch) alone, with a share for each process.

    Args:
        dataset: The data set.
        seed: Seed of the order. Defaults to None: a random seed that all processes share.
    """

    def __init__(self, dataset: Sized, seed: int | None = None) -> None:
        name = type(self).__name__
        if seed is not None and not is_whole(seed, 0):
            raise ValueError(f'{name}.seed must be None or an integer of 0 or more, found {seed!r}')
        if len(dataset) == 0:
            raise ValueError(f'{name}: the data set is empty')
        self.rank, self.world_size = get_dist_info()
        self.dataset = dataset
        self.seed = sync_random_seed() if seed is None else seed
        self.epoch = 0
        self._start, self._epochs_ahead = 0, 0

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of indices of an epoch in this process; the same in all processes."""

    @abstractmethod
    def indices(self, epoch: int, start: int) -> Iterator[int]:
        """Yield this process's indices of an epoch, from position `start` on."""

    def __iter__(self) -> Iterator[int]:
        start, self._start = self._start, 0
        return self.indices(self.epoch + self._epochs_ahead, start)

    def set_epoch(self, epoch: int) -> None:
        """Use the order of this epoch from the next `iter()` on."""
        self.epoch = epoch

    def skip(self, num_samples: int) -> None:
        """Skip this many indices of this process in the next epoch.

        Where they exceed the epoch, `set_epoch` counts from the epoch that they reach: that is
        how the iteration-based loop of onedl-mmengine resumes.
        """
        if num_samples < 0:
            raise ValueError(f'num_samples must not be negative, found {num_samples}')
        self._epochs_ahead, self._start = divmod(num_samples, len(self))
