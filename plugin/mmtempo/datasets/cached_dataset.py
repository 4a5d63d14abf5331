"""A dataset that decodes each sample once."""

from __future__ import annotations

import copy
import hashlib
import logging
import pickle
import secrets
import sys
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset, Compose
from mmengine.logging import print_log
from mmengine.registry import DATASETS

from mmtempo.datasets.cache.sample_cache import CacheStats, SharedSampleCache, parse_bytes

from .cache_split import cache_point, check_by_trial, name_of
from .cached_pipeline import CachedPipeline, Description, fingerprint_of, identity_of

# Another version may decode, or resize, in another way.
VERSIONS = ('mmcv', 'mmseg', 'mmengine', 'mmtempo', 'numpy', 'cv2', 'PIL', 'pyspng', 'zlib_ng')
# Of pickles with a set there is one of these bytes.
SETS = (0x8F, 0x91)


@DATASETS.register_module()
class CachedDataset:
    """Any mmengine dataset, with what its first transforms give kept for all processes of a node.

    Samples are those of the dataset itself, to the bit; so is all else: it is its own pipeline
    that looks samples up. Transforms before the cache must not be random: names that are known
    are refused, and a sample is made twice to see. What comes behind it gets read-only views of
    shared memory and costs the same whatever their size; what leaves the pipeline is copied, as
    far as it still is such a view.

    Workers and ranks share one copy, under fork and spawn. Jobs of the same user on the same
    node do so, too, if their data and transforms are the same; the limit is then that of the
    first. Of policies see `SharedSampleCache`: under shuffling 'keep' is the best that there is.

    A numpy array of the cache refuses to be written into, but torch knows no such tensors: a
    transform that writes into `torch.from_numpy(array)` ends the process with a segmentation
    fault, rather than change what the others read. `writable=True` is for it.

    Samples, the list of which has changed (another annotation file, another calibration),
    are kept in another cache; an image or label file that has changed is read anew.

    Example::

        train_dataloader = dict(dataset=dict(
            type='CachedDataset',
            budget='2GB',
            until='BEVResize',
            dataset=dict(type='NuScenesBEVDataset', ..., pipeline=[...])))

    Args:
        dataset: The dataset, or its config.
        budget: Bytes to use on each node at most, such as '2GB' or a number.
            Defaults to '2GB'.
        until: The last transform before the cache: its type (the last one of this type), or how
            many there are. Defaults to None: the most that are not random.
        folder: A folder on a local disk, where samples are found again after a restart.
            Defaults to None: memory.
        policy: 'keep' or 'lru'. Defaults to 'keep'.
        writable: Whether transforms behind the cache write into what they get; they are given
            copies then. Defaults to False.
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
            dataset = copy.copy(dataset)  # the caller's keeps its pipeline
        if not isinstance(dataset, BaseDataset):
            raise TypeError(
                'CachedDataset.dataset must be a BaseDataset of mmengine, or its config, found '
                f'{type(dataset).__name__}; wrappers such as RepeatDataset go around CachedDataset'
            )
        if policy not in ('keep', 'lru'):
            raise ValueError(f"CachedDataset.policy must be 'keep' or 'lru', found {policy!r}")
        self.budget = parse_bytes(budget, 'CachedDataset.budget')
        self.until, self.folder, self.policy, self.writable = until, folder, policy, writable
        self.dataset = dataset
        cache_point(dataset.pipeline.transforms, until)
        self._installed = False
        if not lazy_init:
            self.full_init()

    def full_init(self) -> None:
        """Load the annotations, and find the memory or make it."""
        self.dataset.full_init()
        if not self._installed:
            self._install(self.dataset.pipeline.transforms)

    def _install(self, transforms: list) -> None:
        inner = self.dataset
        count = cache_point(transforms, self.until)
        # Before they are used, which may leave something in them.
        described = [fingerprint_of([transform]) for transform in transforms[:count]]
        count, unknown = check_by_trial(
            transforms, count, self.until, inner.get_data_info, len(inner)
        )
        if unknown is not None:
            report(f'whether the cached part is random could not be tried: {unknown}')
        key = '\n'.join([self._key(), *(text for text, _ in described[:count])])
        odd = set().union(*(types for _, types in described[:count]))
        if odd:
            report(
                f'transforms hold what cannot be compared ({", ".join(sorted(odd))}): the cache is '
                'of this dataset and its workers only, in memory'
            )
            key += secrets.token_hex(16)

        def current(number: int) -> int:
            return identity_of(inner.get_data_info(number))

        # One of somebody else may give the pipeline other files.
        plain = type(inner).prepare_data.__module__.split('.')[0] in ('mmengine', 'mmtempo')
        cache = SharedSampleCache(
            len(inner),
            self.budget,
            key=key,
            folder=None if odd else self.folder,
            policy=self.policy,
            report=report,
            identity_of=current if plain else None,
        )
        self._installed = True
        inner.pipeline = CachedPipeline(transforms, count, cache, self.writable)
        print_log(f'CachedDataset: {self.describe()}', logger='current')

    def _key(self) -> str:
        """What the cached part depends on, but for the files and the transforms."""
        inner = self.dataset
        digest = hashlib.blake2b(digest_size=16)
        own_infos = type(inner).get_data_info is not BaseDataset.get_data_info
        if inner.serialize_data and not own_infos and not np.isin(inner.data_bytes, SETS).any():
            digest.update(inner.data_bytes)
            digest.update(inner.data_address)
        else:
            for number in range(len(inner)):
                info = inner.get_data_info(number)
                pickled = pickle.dumps(info, protocol=4)
                if _has_set(info):  # the order of which is another in each process
                    pickled = Description().of(info).encode()
                digest.update(pickled)
        return '\n'.join(
            [
                f'{type(inner).__module__}.{type(inner).__qualname__} {digest.hexdigest()}',
                *(
                    f'{name} {getattr(sys.modules.get(name), "__version__", "")}'
                    for name in VERSIONS
                ),
            ]
        )

    @property
    def pipeline(self) -> Any:
        """All transforms, those before the cache included."""
        return self.dataset.pipeline

    @pipeline.setter
    def pipeline(self, pipeline: Any) -> None:
        # Hooks switch to another pipeline by assigning it.
        old = self.dataset.pipeline
        try:
            self._install(pipeline.transforms)
        except ValueError as error:
            report(f'the pipeline that was assigned is used without a cache: {error}')
            self._installed = True
            self.dataset.pipeline = Compose(list(pipeline.transforms))
        new = getattr(self.dataset.pipeline, 'cache', None)
        if isinstance(old, CachedPipeline) and (new is None or new.key != old.cache.key):
            old.cache.close()

    @property
    def metainfo(self) -> dict:
        return self.dataset.metainfo

    @property
    def test_mode(self) -> bool:
        return self.dataset.test_mode

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
            'CachedDataset: samples are kept by their number; give the dataset inside indices=...'
        )

    get_subset_ = get_subset

    def stats(self) -> CacheStats:
        """What was kept, hit and missed so far, by all processes."""
        pipeline = self.dataset.pipeline
        return pipeline.cache.stats() if isinstance(pipeline, CachedPipeline) else CacheStats()

    def describe(self) -> str:
        """One line for the log."""
        pipeline = self.dataset.pipeline
        if not isinstance(pipeline, CachedPipeline):
            return 'no cache' if self._installed else 'cache: not made yet'
        names = [name_of(transform) for transform in pipeline.transforms]
        rest = ', '.join(names[pipeline.count :]) or 'nothing'
        return (
            f'{self.stats()}; {pipeline.cache.folder or "in memory"}; kept: '
            f'{", ".join(names[: pipeline.count])}; per draw: {rest}'
        )

    def __repr__(self) -> str:
        return f'{type(self).__name__}({type(self.dataset).__name__}, {self.describe()})'

    def __getattr__(self, name: str) -> Any:
        # While it is unpickled there is no dataset yet; and what Python asks for is not forwarded.
        if name.startswith('__') or 'dataset' not in self.__dict__:
            raise AttributeError(f'{type(self).__name__} has no attribute {name!r}')
        return getattr(self.dataset, name)


def _has_set(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_set, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_set, value))
    return isinstance(value, (set, frozenset))


def report(message: str) -> None:
    print_log(f'CachedDataset: {message}', logger='current', level=logging.WARNING)
