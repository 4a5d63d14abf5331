"""Loaders that are compared: they load the same batches from the same files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import mmseg.datasets  # noqa: F401 - registers its data sets and transforms
from mmengine.registry import DATASETS
from mmengine.runner import Runner

from mmtempo.datasets import transforms as fast
from mmtempo.loaders import build_prefetch_dataloader, stack_collate

_names = itertools.count()
SEED = 0
BATCH = 4
RESIZE: dict = dict(type='Resize', scale=(800, 600))
CROP = dict(crop_size=(512, 512), cat_max_ratio=0.75)


def _fast(*crop: dict, exact: bool = True) -> list[dict]:
    return [
        dict(type=fast.FastLoadImageFromFile),
        dict(type=fast.FastLoadAnnotations),
        *crop,
        dict(type=fast.FastRandomFlip, prob=0.5),
        dict(type=fast.FastPhotoMetricDistortion, exact=exact),
        dict(type=fast.FastPackSegInputs, copy=False),
    ]


# Pipelines. With the same random numbers all give the same pixels; 'rounded' nearly the same.
PIPELINES: dict[str, list[dict]] = {
    'stock': [
        dict(type='LoadImageFromFile'),
        dict(type='LoadAnnotations'),
        RESIZE,
        dict(type='RandomCrop', **CROP),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PhotoMetricDistortion'),
        dict(type='PackSegInputs'),
    ],
    'fast': _fast(RESIZE, dict(type=fast.FastRandomCrop, **CROP)),
    'rounded': _fast(RESIZE, dict(type=fast.FastRandomCrop, **CROP), exact=False),
    'fused': _fast(dict(type=fast.ResizeRandomCrop, resize=RESIZE, crop=CROP)),
}


@dataclass(frozen=True)
class Arm:
    """Combination of a loader, a pipeline and a cache.

    Attributes:
        loader: Key of `LOADERS`.
        pipeline: Key of `PIPELINES`.
        cache: Initial content of a cache of resized samples, 'nothing' or 'all'; None uses no
            cache. Defaults to None.
    """

    loader: str
    pipeline: str
    cache: str | None = None


STOCK = 'stock'
FILLING, UNCACHED, WARM = 'ours, filling the cache', 'ours, no cache', 'ours, warm'
ROUNDED = 'ours, warm, exact=False'
# In the order of the tables.
ARMS = {
    STOCK: Arm('mmengine', 'stock'),
    FILLING: Arm('mmtempo', 'fast', 'nothing'),
    UNCACHED: Arm('mmtempo', 'fused'),
    WARM: Arm('mmtempo', 'fast', 'all'),
    ROUNDED: Arm('mmtempo', 'rounded', 'all'),
}


class Stream(NamedTuple):
    """Batches of a loader that has just been started.

    Attributes:
        take: Function that returns the next batch.
        close: Function that ends the workers.
    """

    take: Callable[[], Any]
    close: Callable[[], Any]


def _mmengine(dataset: Any, workers: int) -> Stream:
    batches = [iter(Runner.build_dataloader(_config(dataset, workers), seed=SEED))]
    # The workers end with the iterator, so `clear` drops the only reference to it.
    return Stream(lambda: next(batches[0]), batches.clear)


def _mmtempo(dataset: Any, workers: int) -> Stream:
    cfg = {**_config(dataset, workers), 'collate_fn': stack_collate}  # as for models of mmseg
    loader = build_prefetch_dataloader(cfg, seed=SEED, endless=True)
    return Stream(loader.take, loader.close)


LOADERS = dict(mmengine=_mmengine, mmtempo=_mmtempo)


def _config(dataset: Any, workers: int) -> dict:
    """Return a dataloader config of mmengine; both loaders prefetch two batches per worker."""
    return dict(
        dataset=dataset,
        batch_size=BATCH,
        num_workers=workers,
        sampler=dict(type='InfiniteSampler', shuffle=True),
    )


class Source:
    """Data set of an arm, as a config or built.

    Args:
        arm: The arm.
        root: Folder that `write_pictures` has filled.
        suffix: Suffix of the images, 'jpg' or 'png'.
    """

    def __init__(self, arm: Arm, root: str, suffix: str) -> None:
        self.arm, self._root, self._suffix = arm, root, suffix
        self._warm: Any = None

    def config(self) -> dict:
        """Return the config of the data set; its cache, if any, is empty."""
        root = self._root
        if self.arm.cache is not None:
            # Data sets of the same folder share a cache; a new name of the folder gives a new one.
            root = os.path.join(self._root, f'again-{next(_names)}')
            os.symlink('.', root)
        found = dict(
            type='BaseSegDataset',
            data_root=root,
            data_prefix=dict(img_path=f'img_dir/{self._suffix}', seg_map_path='ann_dir'),
            img_suffix=f'.{self._suffix}',
            pipeline=PIPELINES[self.arm.pipeline],
        )
        if self.arm.cache is None:
            return found
        return dict(type='CachedDataset', dataset=found, until='Resize')

    def dataset(self) -> Any:
        """Return the data set, with the initial content of the cache that the arm asks for."""
        if self.arm.cache != 'all':
            return DATASETS.build(self.config())
        if self._warm is None:
            self._warm = DATASETS.build(self.config())
            for index in range(len(self._warm)):
                self._warm[index]
        return self._warm
