"""Loaders that are compared: they load the same batches from the same files."""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mmseg.datasets  # noqa: F401 - registers its data sets and transforms
from mmengine.dataset import default_collate, pseudo_collate, worker_init_fn
from mmengine.registry import DATA_SAMPLERS, DATASETS
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmtempo.datasets import transforms as fast
from mmtempo.loaders import build_prefetch_dataloader, stack_collate

_names = itertools.count()
SEED = 0
BATCH = 4
RESIZE: dict = dict(type='Resize', scale=(800, 600))
CROP = dict(crop_size=(512, 512), cat_max_ratio=0.75)
LOAD: list[dict] = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')]
FAST_LOAD: list[dict] = [dict(type=fast.FastLoadImageFromFile), dict(type=fast.FastLoadAnnotations)]


def _fast_rest(exact: bool = True) -> list[dict]:
    return [
        dict(type=fast.FastRandomFlip, prob=0.5),
        dict(type=fast.FastPhotoMetricDistortion, exact=exact),
        dict(type=fast.FastPackSegInputs, copy=False),
    ]


# Pipelines. With the same random numbers all give the same pixels; 'rounded' nearly the same.
PIPELINES: dict[str, list[dict]] = {
    'stock': [
        *LOAD,
        RESIZE,
        dict(type='RandomCrop', **CROP),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PhotoMetricDistortion'),
        dict(type='PackSegInputs'),
    ],
    'fast': [*FAST_LOAD, RESIZE, dict(type=fast.FastRandomCrop, **CROP), *_fast_rest()],
    'rounded': [
        *FAST_LOAD,
        RESIZE,
        dict(type=fast.FastRandomCrop, **CROP),
        *_fast_rest(exact=False),
    ],
    'fused': [
        *FAST_LOAD,
        dict(type=fast.ResizeRandomCrop, resize=RESIZE, crop=CROP),
        *_fast_rest(),
    ],
}


@dataclass(frozen=True)
class Arm:
    """Combination of a loader, a pipeline and a cache.

    Attributes:
        loader: Key of `LOADERS`.
        pipeline: Key of `PIPELINES`.
        cache: Initial content of a cache of resized samples, 'nothing' or 'all'; None uses no
            cache. Defaults to None.
        needs: Name of a third-party package that the loader needs. Defaults to None.
    """

    loader: str
    pipeline: str
    cache: str | None = None
    needs: str | None = None

    @property
    def is_there(self) -> bool:
        """Whether the package that the loader needs is installed."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


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
    'stock + our transforms': Arm('mmengine', 'fused'),
    'stock + our loader': Arm('mmtempo', 'stock'),
    'stock + our cache, warm': Arm('mmengine', 'stock', 'all'),
    'torch DataLoader, default_collate': Arm('torch', 'stock'),
    'torchdata StatefulDataLoader': Arm('torchdata', 'stock', needs='torchdata'),
    'SPDL, threads': Arm('spdl', 'stock', needs='spdl'),
}


class Stream:
    """Batches of a loader that has just been started.

    Args:
        take: Function that returns the next batch.
        close: Function that ends the workers.
        dataset: Data set of the loader.
    """

    def __init__(self, take: Callable[[], Any], close: Callable[[], Any], dataset: Any) -> None:
        self.take, self.close, self.dataset = take, close, dataset


def _mmengine(dataset: Any, workers: int) -> Stream:
    return _of_torch(Runner.build_dataloader(_config(dataset, workers), seed=SEED))


def _mmtempo(dataset: Any, workers: int) -> Stream:
    cfg = {**_config(dataset, workers), 'collate_fn': stack_collate}  # as for models of mmseg
    loader = build_prefetch_dataloader(cfg, seed=SEED, endless=True)
    return Stream(loader.take, loader.close, loader.dataset)


def _torch(dataset: Any, workers: int) -> Stream:
    return _of_torch(_plain(DataLoader, dataset, workers, default_collate))


def _torchdata(dataset: Any, workers: int) -> Stream:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return _of_torch(_plain(StatefulDataLoader, dataset, workers, pseudo_collate))


def _spdl(dataset: Any, workers: int) -> Stream:
    from spdl.pipeline import PipelineBuilder

    dataset = _built(dataset)
    sampler = DATA_SAMPLERS.build(dict(type='InfiniteSampler', dataset=dataset, seed=SEED))
    threads = max(workers, 1)
    pipeline = (
        PipelineBuilder()
        .add_source(sampler)
        .pipe(partial(_item, dataset), concurrency=threads, output_order='input')
        .aggregate(BATCH)
        .pipe(_collated)
        .add_sink(2)
        .build(num_threads=threads)
    )
    pipeline.start()
    return Stream(partial(next, pipeline.get_iterator()), pipeline.stop, dataset)


LOADERS = dict(mmengine=_mmengine, mmtempo=_mmtempo, torch=_torch, torchdata=_torchdata, spdl=_spdl)


def _item(dataset: Any, index: int) -> Any:
    return dataset[index]


def _collated(samples: list) -> Any:
    return pseudo_collate(samples)


def _config(dataset: Any, workers: int) -> dict:
    """Return a dataloader config of mmengine; both loaders prefetch two batches per worker."""
    return dict(
        dataset=dataset,
        batch_size=BATCH,
        num_workers=workers,
        sampler=dict(type='InfiniteSampler', shuffle=True),
    )


def _built(dataset: Any) -> Any:
    return DATASETS.build(dataset) if isinstance(dataset, dict) else dataset


def _plain(kind: Any, dataset: Any, workers: int, collate: Callable) -> Any:
    dataset = _built(dataset)
    sampler = DATA_SAMPLERS.build(dict(type='InfiniteSampler', dataset=dataset, seed=SEED))
    start = partial(worker_init_fn, num_workers=workers, rank=0, seed=SEED)
    return kind(
        dataset,
        BATCH,
        sampler=sampler,
        num_workers=workers,
        collate_fn=collate,
        worker_init_fn=start,
    )


def _of_torch(loader: Any) -> Stream:
    batches = [iter(loader)]
    # The workers end with the iterator, so `clear` drops the only reference to it.
    return Stream(lambda: next(batches[0]), batches.clear, loader.dataset)


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
