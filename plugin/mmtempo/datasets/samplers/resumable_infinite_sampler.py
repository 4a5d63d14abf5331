"""Permutation after permutation, without an end."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import Sampler


@DATA_SAMPLERS.register_module()
class ResumableInfiniteSampler(Sampler):
    """mmengine's `InfiniteSampler`, from any place on at once.

    The order of each epoch is a permutation of (seed, epoch), so that a training that is resumed
    at iteration 100,000 needs one permutation to go on, and not all those before it. The first
    epoch is that of the stock sampler; its later ones are drawn from one generator after the
    other's end, and can only be replayed. Several processes take turns, as in stock.

    Example::

        train_dataloader = dict(sampler=dict(type='ResumableInfiniteSampler', shuffle=True), ...)

    Args:
        dataset: The data set.
        shuffle: Whether to permute it. Defaults to True.
        seed: Of the permutations; None draws one that all processes share. Defaults to None.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int | None = None) -> None:
        self.rank, self.world_size = get_dist_info()
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.size = len(dataset)
        if self.size == 0:
            raise ValueError('ResumableInfiniteSampler: the data set is empty')
        self._start = 0

    def __iter__(self) -> Iterator[int]:
        known, order = -1, list[int]()
        place = self._start * self.world_size + self.rank
        while True:
            epoch, offset = divmod(place, self.size)
            if epoch != known:
                known, order = epoch, self._order(epoch)
            yield order[offset]
            place += self.world_size

    def __len__(self) -> int:
        return self.size

    def skip(self, num_samples: int) -> None:
        """Begin behind so many samples of this process; as the stock sampler of onedl-mmengine."""
        if num_samples < 0:
            raise ValueError(f'num_samples must not be negative, found {num_samples}')
        self._start = num_samples

    def set_epoch(self, epoch: int) -> None:
        """It knows its epochs."""

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(self.seed + epoch)
        return torch.randperm(self.size, generator=generator).tolist()
