"""Samples equal those of the dataset itself, and are decoded once for all processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmcv.transforms import BaseTransform
from mmengine.dataset import Compose, RepeatDataset
from mmengine.registry import DATASETS

from mmtempo.datasets import cached_dataset
from mmtempo.datasets.cache_split import REPEATS, same
from mmtempo.datasets.cached_dataset import CachedDataset
from mmtempo.utils.units import size
from tests.testing.cached_numbers import (
    Decode,
    Holds,
    Numbers,
    Pack,
    Pass,
    Shift,
    decoded,
    drawn,
    numbers,
)
from tests.testing.processes import in_child

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked'),
    pytest.mark.usefixtures('own_temporary_folder'),
]


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the warnings of cached datasets from here on."""
    messages: list[str] = []
    monkeypatch.setattr(cached_dataset, 'report', messages.append)
    return messages


class NoneAtTimes(BaseTransform):
    def transform(self, results: dict) -> dict | None:
        return None if np.random.rand() < 0.5 else results


class Reads(BaseTransform):
    def transform(self, results: dict) -> dict:
        return dict(img=Path(results['img_path']).read_bytes())


@pytest.mark.parametrize('options', [{}, dict(writable=True), dict(policy='keep')])
def test_samples_equal_those_of_the_dataset(folder: str, options: dict) -> None:
    bare = numbers(folder)
    cached = CachedDataset(numbers(folder), '1MB', 1, **options)
    order = [3, 1, 4, 1, 5, 0, 2, -1]
    for epoch in range(2):
        assert same(drawn(cached, order, epoch), drawn(bare, order, epoch))
    assert not same(drawn(cached, order, 0), drawn(cached, order, 1))
    assert decoded(cached, order) == 0
    assert cached.stats().samples == 6


def test_bev_samples_equal_those_of_the_dataset(bev_root: str, tmp_path: Path) -> None:
    inner = dict(
        type='NuScenesBEVDataset',
        data_root=bev_root,
        on_bad_sample='skip',
        pipeline=[
            dict(type='LoadCameraImage'),
            dict(type='LoadBEVAnnotation'),
            dict(type='BEVResize', scale=(160, 90)),
            dict(type='BEVRandomFlip'),
            dict(type='BEVRandomCrop', size=(96, 64)),
            dict(type='PackBEVInputs'),
        ],
    )
    folder = str(tmp_path / 'cache')
    cfg = dict(type='CachedDataset', dataset=inner, budget='3MB', until='BEVResize', folder=folder)
    cached, bare = DATASETS.build(copy.deepcopy(cfg)), DATASETS.build(copy.deepcopy(inner))
    for _ in range(2):
        assert same(drawn(cached, range(8)), drawn(bare, range(8)))
    stats = cached.stats()
    assert (stats.samples, stats.hits, stats.misses) == (8, 8, 8)
    assert cached.describe().startswith('cache: 8 of 8 samples, ')
    assert 'cached: LoadCameraImage, LoadBEVAnnotation, BEVResize; per draw: BEVR' in repr(cached)
    # `on_bad_sample` replaces a sample, also by one from the cache.
    del cached
    warm = DATASETS.build(cfg | dict(dataset=inner | dict(test_mode=True)))
    warm._bad[3] = bare._bad[3] = True
    bare.test_mode = True
    assert same(drawn(warm, [3, 4, 3]), drawn(bare, [3, 4, 3]))
    assert bool((warm[3]['data_samples'].gt_bev == 1 << 14).all())
    assert not bool((warm[4]['data_samples'].gt_bev == 1 << 14).all())
    assert warm.stats().misses == 0


def test_bad_sample_is_skipped_as_without_a_cache(own_bev_root: Path) -> None:
    first = sorted((own_bev_root / 'img_dir/train').iterdir())[0]
    first.write_bytes(b'')
    pipeline = [dict(type=t) for t in ('LoadCameraImage', 'LoadBEVAnnotation', 'PackBEVInputs')]
    inner = dict(
        type='NuScenesBEVDataset',
        data_root=str(own_bev_root),
        on_bad_sample='skip',
        pipeline=pipeline,
    )
    cached = CachedDataset(inner, until=2)
    assert cached[0]['data_samples'].token == cached[1]['data_samples'].token
    assert cached.bad_samples() == [str(first)]


def test_attributes_of_the_dataset_are_forwarded(folder: str) -> None:
    inner = numbers(folder, lazy_init=True)
    cached = CachedDataset(inner, until='Decode', lazy_init=True)
    assert cached.describe() == 'cache: not initialized'
    assert not cached._fully_initialized
    cached.full_init()
    cached.full_init()
    assert cached._fully_initialized
    assert not hasattr(inner.pipeline, 'cache')
    assert len(cached) == 6
    assert cached.metainfo == dict(classes=('a', 'b'))
    assert cached.get_data_info(2)['img_path'] == f'{folder}/2.bin'
    assert cached.get_cat_ids(4) == [4]
    assert cached.test_mode is False
    assert isinstance(cached.pipeline, Compose)
    assert [type(t).__name__ for t in cached.pipeline.transforms] == ['Decode', 'Shift', 'Pack']
    assert len(RepeatDataset(dict(type=CachedDataset, dataset=inner), times=2)) == 12
    with pytest.raises(AttributeError, match='nothing'):
        _ = cached.nothing
    assert not hasattr(cached, '__getitems__')
    for method in (cached.get_subset, cached.get_subset_):
        with pytest.raises(NotImplementedError, match=r'indices='):
            method([1])


def test_assigned_pipeline_is_cached_anew(folder: str) -> None:
    """Hooks that stop an augmentation assign a pipeline."""
    cached = CachedDataset(numbers(folder), until='Decode')
    cached[1]
    cached.pipeline = Compose([Decode(), Pack()])
    assert decoded(cached, [1]) == 0  # the cached part is the same
    cached.pipeline = Compose([Pass(), Decode(), Pack()])
    assert decoded(cached, [1]) == 1
    assert same(drawn(cached, range(6)), drawn(numbers(folder, Pack()), range(6)))


def test_assigned_uncacheable_pipeline_runs_without_a_cache(
    folder: str, warnings: list[str]
) -> None:
    cached = CachedDataset(numbers(folder), until='Decode')
    old = cached.pipeline
    cached.pipeline = Compose([Pass(), Reads()])
    assert 'is used without a cache: CachedDataset.until' in ''.join(warnings)
    assert old.cache._arena is None
    assert cached[1]['img'] == b'\2\7'
    assert cached.describe() == 'no cache'
    cached.pipeline = Compose([Decode(), Pack()])
    assert decoded(cached, [1, 1]) == 1


def test_none_draws_another_sample(folder: str) -> None:
    Path(folder, '2.bin').write_bytes(b'none')
    for rest in ([Pack()], [NoneAtTimes(), Pack()]):
        bare, cached = numbers(folder, *rest), CachedDataset(numbers(folder, *rest), until=1)
        for epoch in range(2):
            assert same(drawn(cached, range(6), epoch), drawn(bare, range(6), epoch))
    cached = CachedDataset(numbers(folder, Pack(), test_mode=True), until=1)
    with pytest.raises(Exception, match='Test time pipline should not get `None`'):
        cached[2]


def test_wrong_arguments_are_refused(folder: str) -> None:
    with pytest.raises(ValueError, match='CachedDataset.budget must be .* found .much.'):
        CachedDataset(numbers(folder), 'much')
    with pytest.raises(ValueError, match="policy must be 'keep', found 'lru'; remove the key"):
        CachedDataset(numbers(folder), policy='lru')
    with pytest.raises(TypeError, match='found RepeatDataset; wrap CachedDataset with wrappers'):
        CachedDataset(dict(type='RepeatDataset', times=2, dataset=numbers(folder)))


def test_workers_share_decoded_samples(folder: str) -> None:
    cached = CachedDataset(numbers(folder), until=1)
    assert in_child(decoded, cached, [0, 1, 2]) == 3
    assert in_child(decoded, cached, range(6)) == 3
    assert decoded(cached, range(6)) == 0


def test_ranks_share_decoded_samples(folder: str) -> None:
    cached = CachedDataset(numbers(folder), until=1)
    assert decoded(cached, range(6)) == 6
    # Built again, from its config.
    assert in_child(decoded_by_rank, folder) == REPEATS  # of the trial for randomness


def decoded_by_rank(folder: str) -> int:
    before = Decode.calls
    decoded(CachedDataset(numbers(folder), until=1), range(6))
    return Decode.calls - before


def spawned(pipe: Any) -> None:
    dataset = pipe.recv()
    pipe.send((drawn(dataset, range(6)), Decode.calls))


@pytest.mark.slow
def test_spawned_workers_share_decoded_samples(folder: str) -> None:
    cached = CachedDataset(numbers(folder, Shift()), until=1)
    expected = drawn(cached, range(5))
    context = multiprocessing.get_context('spawn')
    here, there = context.Pipe()
    process = context.Process(target=spawned, args=(there,))
    process.start()
    here.send(cached)
    found, calls = here.recv()
    process.join()
    assert same(found[:5], expected)
    assert calls == 1
    assert decoded(cached, [5]) == 0  # the spawned worker decoded it


def test_pickled_dataset_shares_the_cache(folder: str) -> None:
    cached = CachedDataset(numbers(folder), until=1)
    decoded(cached, range(6))
    other = pickle.loads(pickle.dumps(cached))
    assert decoded(other, range(6)) == 0
    assert same(drawn(other, range(6)), drawn(cached, range(6)))
    assert copy.deepcopy(cached).stats().samples == 6


def test_folder_is_warm_after_a_restart_except_changed_files(folder: str, tmp_path: Path) -> None:
    where = str(tmp_path / 'cache')
    assert decoded(CachedDataset(numbers(folder), until=1, folder=where), range(6)) == 6
    Path(folder, '2.bin').write_bytes(b'new content')
    status = os.stat(f'{folder}/4.bin')
    os.utime(f'{folder}/4.bin', ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    warm = CachedDataset(numbers(folder), until=1, folder=where)
    assert decoded(warm, range(6)) == 2
    assert decoded(warm, range(6)) == 0
    assert same(drawn(warm, range(6)), drawn(numbers(folder), range(6)))


def test_other_samples_or_transforms_use_another_cache(folder: str, tmp_path: Path) -> None:
    where = str(tmp_path / 'cache')
    options: dict[str, Any] = dict(until='Decode', folder=where)
    assert decoded(CachedDataset(numbers(folder), **options), range(5)) == 5
    assert decoded(CachedDataset(numbers(folder, count=5), **options), range(5)) == 5
    other = Numbers(folder, pipeline=[dict(type='Resize', scale=9), Decode()])
    other.pipeline.transforms[0] = Pass()
    assert decoded(CachedDataset(other, **options), range(5)) == 5
    for count in (3, 4):
        serialized = numbers(folder, count=count, serialize_data=True)
        assert decoded(CachedDataset(serialized, **options), range(3)) == 3
    assert decoded(CachedDataset(numbers(folder), **options), range(5)) == 0


def test_full_budget_is_no_error(folder: str) -> None:
    cached = CachedDataset(numbers(folder), 20_000, until=1)
    bare = numbers(folder)
    for epoch in range(2):
        assert same(drawn(cached, range(6), epoch), drawn(bare, range(6), epoch))
    stats = cached.stats()
    assert (stats.samples, stats.hits, stats.misses) == (3, 3, 9)
    # The samples hold the path of the folder, whose length differs.
    used = size(stats.used)
    assert cached.describe().startswith(f'cache: 3 of 6 samples, {used} of 19.5 KiB, 25 % hits')


def test_cache_with_incomparable_transforms_is_not_shared(
    folder: str, tmp_path: Path, warnings: list[str]
) -> None:
    dataset = numbers(folder, Holds(threading.Lock()), Pack())
    cached = CachedDataset(dataset, until=2, folder=str(tmp_path / 'cache'))
    assert decoded(cached, [1, 1]) == 1
    assert not (tmp_path / 'cache').exists()
    assert 'in memory' in cached.describe()
    other = CachedDataset(numbers(folder, Holds(threading.Lock()), Pack()), until=2)
    assert decoded(other, [1]) == 1
    assert 'transforms have attributes or code that cannot be compared (lock)' in ''.join(warnings)


def test_folder_of_changed_files_is_cleared(folder: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(budget=40_000, until=1, folder=str(tmp_path / 'cache'))
    for _ in range(2):
        for number in range(6):
            os.utime(f'{folder}/{number}.bin', ns=(7, os.stat(folder).st_mtime_ns - number))
        cached = CachedDataset(numbers(folder), **options)
        assert decoded(cached, range(6)) == 6
        assert decoded(cached, range(6)) == 0
        del cached
        os.utime(folder)
