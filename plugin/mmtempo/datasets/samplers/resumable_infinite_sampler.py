"""Endless sampler that starts at any position without a replay."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from mmengine.dist import get_dist_info, sync_random_seed
from mmengine.registry import DATA_SAMPLERS
from torch.utils.data import Sampler


@DATA_SAMPLERS.register_module()
class ResumableInfiniteSampler(Sampler):
    """mmengine's `InfiniteSampler` that starts at any position without a replay.

    The order of each epoch is a permutation drawn from (seed, epoch), so a training that resumes
    at iteration 100,000 computes one permutation instead of all earlier ones. The first epoch
    equals that of the stock sampler; stock draws the later epochs from one generator in a row, so
    they can only be replayed. Processes take turns, as in stock.

    Example::

        train_dataloader = dict(sampler=dict(type='ResumableInfiniteSampler', shuffle=True), ...)

    Args:
        dataset: The data set.
        shuffle: Whether to permute the samples. Defaults to True.
        seed: Seed of the permutations. Defaults to None: a random seed that all processes share.
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
        current, order = -1, list[int]()
        position = self._start * self.world_size + self.rank
        while True:
            epoch, offset = divmod(position, self.size)
            if epoch != current:
                current, order = epoch, self._order(epoch)
            yield order[offset]
            position += self.world_size

    def __len__(self) -> int:
        return self.size

    def skip(self, num_samples: int) -> None:
        """Start after this many samples of this process; as the sampler of onedl-mmengine does."""
        if num_samples < 0:
            raise ValueError(f'num_samples must not be negative, found {num_samples}')
        self._start = num_samples

    def set_epoch(self, epoch: int) -> None:
        """Ignore the epoch: the position determines it."""

    def _order(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.size))
        generator = torch.Generator().manual_seed(self.seed + epoch)
        return torch.randperm(self.size, generator=generator).tolist()
