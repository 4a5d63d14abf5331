"""Dataset wrapper that runs the deterministic first transforms once per sample."""

from __future__ import annotations

import copy
import logging
import secrets
from typing import Any

from mmengine.dataset import BaseDataset, Compose
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from mmtempo.datasets.cache.sample_cache import CacheStats, SharedSampleCache, parse_bytes

from .cache_key import key_of_data, key_of_transform
from .cache_split import cache_point, check_by_trial, name_of
from .cached_pipeline import CachedPipeline, identity_of


@DATASETS.register_module()
class CachedDataset:
    """A wrapper of any mmengine dataset that caches the output of the first transforms.

    Samples equal those of the dataset itself to the bit, and all else is the dataset's: its own
    pipeline looks the samples up. Transforms before the cache must not be random: known names are
    refused, and a sample is computed several times as a trial. Transforms after the cache get
    read-only views of shared memory, whose cost does not depend on their size; where the output of
    the pipeline still is such a view, it is copied.

    Workers and ranks share one copy, under fork and spawn. So do jobs of the same user on the same
    node whose data and transforms are equal; the budget of the first one then applies.

    NumPy arrays of the cache refuse writes, but torch has no read-only tensors: a transform that
    writes into `torch.from_numpy(array)` ends the process with a segmentation fault, rather than
    change what other processes read. `writable=True` is for such transforms.

    Another cache is used if the list of samples changes (another annotation file, another
    calibration), or a cached transform: its arguments, the Python files of its class and base
    classes, or the version of a package such as mmcv. Code that it calls in other files is not
    compared. If an image or label file changes, that file is read again.

    Example::

        train_dataloader = dict(dataset=dict(
            type='CachedDataset',
            budget='2GB',
            until='BEVResize',
            dataset=dict(type='NuScenesBEVDataset', ..., pipeline=[...])))

    Args:
        dataset: The dataset, or its config.
        budget: The maximum number of bytes on each node, or a string such as '2GB'.
            Defaults to '2GB'.
        until: The last transform before the cache: its type (the last one of this type), or the
            number of transforms before the cache. Defaults to None: all up to the first random one.
        folder: A folder on a local disk, in which the cache survives a restart.
            Defaults to None: memory.
        policy: Only 'keep': no sample is evicted, see `SharedSampleCache`. Defaults to 'keep'.
        writable: Whether transforms after the cache write into their input; they get copies then.
            Defaults to False.
        lazy_init: Whether to wait for `full_init`. Defaults to False.
    """

    def __init__(
        self,
        dataset: BaseDataset | dict,
        budget: int | str = '2GB',
        until: str | int | None = None,
        folder: str | None = None,
        policy: str = 'keep',
        writable: bool = False,
        lazy_init: bool = False,
    ) -> None:
        if isinstance(dataset, dict):
            dataset = DATASETS.build(dataset)
        elif isinstance(dataset, BaseDataset):
            dataset = copy.copy(dataset)  # keeps the pipeline of the caller's dataset
        if not isinstance(dataset, BaseDataset):
            raise TypeError(
                'CachedDataset.dataset must be a BaseDataset of mmengine, or its config, found '
                f'{type(dataset).__name__}; wrap CachedDataset with wrappers such as RepeatDataset'
            )
        if policy != 'keep':
            raise ValueError(
                f"CachedDataset.policy must be 'keep', found {policy!r}; remove the key: 'lru', "
                'which never hits more often under shuffling or weighted draws, was removed'
            )
        self.budget = parse_bytes(budget, 'CachedDataset.budget')
        self.until, self.folder, self.writable = until, folder, writable
        self.dataset = dataset
        cache_point(dataset.pipeline.transforms, until)
        self._installed = False
        if not lazy_init:
            self.full_init()

    def full_init(self) -> None:
        """Load the annotations, and open or create the cache."""
        self.dataset.full_init()
        if not self._installed:
            self._install(self.dataset.pipeline.transforms)

    def _install(self, transforms: list) -> None:
        inner = self.dataset
        count = cache_point(transforms, self.until)
        # Before the trial, as transforms may change their attributes when they are called.
        described = [key_of_transform(transform) for transform in transforms[:count]]
        count, unknown = check_by_trial(
            transforms, count, self.until, inner.get_data_info, len(inner)
        )
        if unknown is not None:
            report(f'trial for randomness of the cached transforms failed: {unknown}')
        key = '\n'.join([key_of_data(inner), *(text for text, _ in described[:count])])
        undescribed = set().union(*(types for _, types in described[:count]))
        if undescribed:
            report(
                f'transforms have attributes or code that cannot be compared '
                f'({", ".join(sorted(undescribed))}); the cache is in memory, for this dataset and '
                'its workers only'
            )
            key += secrets.token_hex(16)

        def current(number: int) -> int:
            return identity_of(inner.get_data_info(number))

        # Other classes may override it to pass other files to the pipeline.
        is_stock = type(inner).prepare_data.__module__.split('.')[0] in ('mmengine', 'mmtempo')
        cache = SharedSampleCache(
            len(inner),
            self.budget,
            key=key,
            folder=None if undescribed else self.folder,
            report=report,
            identity_of=current if is_stock else None,
        )
        self._installed = True
        inner.pipeline = CachedPipeline(transforms, count, cache, self.writable)
        print_log(f'CachedDataset: {self.describe()}', logger='current')

    @property
    def pipeline(self) -> Any:
        """All transforms, including those before the cache."""
        return self.dataset.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Any) -> None:
        # Hooks assign this attribute to switch to another pipeline.
        old = self.dataset.pipeline
        try:
            self._install(pipeline.transforms)
        except ValueError as error:
            report(f'the assigned pipeline is used without a cache: {error}')
            self._installed = True
            self.dataset.pipeline = Compose(list(pipeline.transforms))
        new = getattr(self.dataset.pipeline, 'cache', None)
        if isinstance(old, CachedPipeline) and (new is None or new.key != old.cache.key):
            old.cache.close()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if not self._installed:
            self.full_init()
        return self.dataset[index]

    def get_data_info(self, index: int) -> dict:
        return self.dataset.get_data_info(index)

    def get_subset(self, indices: Any) -> Any:
        raise NotImplementedError(
            'CachedDataset has no subsets, as it stores samples by number; set indices= of the '
            'dataset inside'
        )

    get_subset_ = get_subset

    def stats(self) -> CacheStats:
        """Return size, hits and misses of the cache over all processes."""
        pipeline = self.dataset.pipeline
        return pipeline.cache.stats() if isinstance(pipeline, CachedPipeline) else CacheStats()

    def describe(self) -> str:
        """Return a description in one line, for the log."""
        pipeline = self.dataset.pipeline
        if not isinstance(pipeline, CachedPipeline):
            return 'no cache' if self._installed else 'cache: not initialized'
        names = [name_of(transform) for transform in pipeline.transforms]
        rest = ', '.join(names[pipeline.count :]) or 'nothing'
        return (
            f'{self.stats()}; {pipeline.cache.folder or "in memory"}; cached: '
            f'{", ".join(names[: pipeline.count])}; per draw: {rest}'
        )

    def __repr__(self) -> str:
        return f'{type(self).__name__}({type(self.dataset).__name__}, {self.describe()})'

    def __getattr__(self, name: str) -> Any:
        # There is no dataset during unpickling; special methods of Python are not forwarded.
        if name.startswith('__') or 'dataset' not in self.__dict__:
            raise AttributeError(f'{type(self).__name__} has no attribute {name!r}')
        return getattr(self.dataset, name)


def report(message: str) -> None:
    """Log a warning."""
    print_log(f'CachedDataset: {message}', logger='current', level=logging.WARNING)
