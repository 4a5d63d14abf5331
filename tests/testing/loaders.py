"""Prefetching loaders over samples that draw from every generator."""

from __future__ import annotations

from typing import Any

from mmtempo.loaders import PrefetchDataLoader, build_prefetch_dataloader
from tests.testing.samples import Noisy


def build_loader(dataset: Any = None, endless: bool = True, **options: Any) -> PrefetchDataLoader:
    """Build a loader of batches of four; `options` are keys of its config."""
    cfg: dict[str, Any] = dict(
        dataset=dataset or Noisy(),
        sampler=dict(type='DefaultSampler', shuffle=True),
        batch_size=4,
        num_workers=0,
    )
    return build_prefetch_dataloader({**cfg, **options}, seed=3, endless=endless)


def take_batches(loader: PrefetchDataLoader, count: int) -> list[list]:
    """Take batches as the training does, which moves the position."""
    return [[one.tolist() for one in loader.take()['inputs']] for _ in range(count)]


def epoch_batches(loader: PrefetchDataLoader) -> list[list]:
    """Return the batches of a `for` loop over the loader."""
    return [[one.tolist() for one in batch['inputs']] for batch in loader]
