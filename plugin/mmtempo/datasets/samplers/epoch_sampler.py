"""What samplers of finite epochs share: ranks, seed, epoch, and a way to begin inside one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sized

from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler


class EpochSampler(Sampler):
    """A sampler whose order is a function of (seed, epoch) alone, with a share for each process.

    Args:
        dataset: The data set.
        seed: Of the order; None draws one that all processes share. Defaults to None.
    """

    def __init__(self, dataset: Sized, seed: int | None = None) -> None:
        name = type(self).__name__
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
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
        """Indices of an epoch in this process; the same in all."""

    @abstractmethod
    def indices(self, epoch: int, start: int) -> Iterator[int]:
        """This process's indices of an epoch, from the one at `start` on."""

    def __iter__(self) -> Iterator[int]:
        start, self._start = self._start, 0
        return self.indices(self.epoch + self._epochs_ahead, start)

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch from the next `iter()` on."""
        self.epoch = epoch

    def skip(self, num_samples: int) -> None:
        """Begin behind so many indices of this process, the next time only.

        Where that is beyond the epoch's end, the epochs that are set count from there: that is
        how onedl-mmengine's iteration loop resumes.
        """
        if num_samples < 0:
            raise ValueError(f'num_samples must not be negative, found {num_samples}')
        self._epochs_ahead, self._start = divmod(num_samples, len(self))
