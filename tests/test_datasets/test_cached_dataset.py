"""The samples of the dataset itself, decoded once for all processes."""

from __future__ import annotations

import copy
import functools
import importlib.util
import multiprocessing
import os
import pickle
import re
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform, KeyMapper
from mmengine.dataset import BaseDataset, Compose, RepeatDataset
from mmengine.registry import DATASETS
from mmengine.structures import BaseDataElement

from mmtempo.datasets import cached_dataset
from mmtempo.datasets.cache_split import REPEATS, same
from mmtempo.datasets.cached_dataset import CachedDataset
from mmtempo.datasets.cached_pipeline import fingerprint_of, identity_of
from mmtempo.utils.rng import generator_states, seed_generators
from tests.testing.processes import in_child

pytestmark = pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked')


class Decode(BaseTransform):
    """Reads a file; counts how often in this process."""

    calls = 0

    def transform(self, results: dict) -> dict | None:
        type(self).calls += 1
        content = Path(results['img_path']).read_bytes()
        if content == b'none':
            return None
        if content == b'broken':
            raise OSError(f'{results["img_path"]} is broken')
        results['img'] = np.resize(np.frombuffer(content, np.uint8), (40, 50, 3))
        return results


class Pass(BaseTransform):
    def transform(self, results: dict) -> dict:
        return results


class Shift(BaseTransform):
    """Random, which its name does not say."""

    def transform(self, results: dict) -> dict:
        results['img'] = results['img'] + np.uint8(np.random.randint(250) + 1)
        return results


class Counts(BaseTransform):
    """Not the same twice, without a random number."""

    calls = 0

    def transform(self, results: dict) -> dict:
        self.calls += 1
        return results | dict(calls=self.calls)


class WritesInPlace(BaseTransform):
    def transform(self, results: dict) -> dict:
        results['img'] += 1
        return results


class DrawsInPlace(BaseTransform):
    """OpenCV refuses in other words than numpy."""

    def transform(self, results: dict) -> dict:
        cv2.rectangle(results['img'], (0, 0), (5, 5), (1, 2, 3))
        return results


class NoneAtTimes(BaseTransform):
    def transform(self, results: dict) -> dict | None:
        return None if np.random.rand() < 0.5 else results


class Pack(BaseTransform):
    """A tensor over the array's own memory, in a data sample and beside it."""

    def transform(self, results: dict) -> dict:
        image = torch.from_numpy(results['img'])
        sample = BaseDataElement(metainfo=dict(number=results['sample_idx']), image=image)
        return dict(inputs=image, data_samples=sample, pair=(results['img'], 1), more=[image])


class Numbers(BaseDataset):
    METAINFO = dict(classes=('a', 'b'))

    def __init__(self, folder: str, count: int = 6, **options: Any) -> None:
        self.folder, self.count = folder, count
        # To serialize collects all the garbage that there is.
        super().__init__(**dict(serialize_data=False) | options)

    def load_data_list(self) -> list[dict]:
        return [dict(img_path=f'{self.folder}/{number}.bin') for number in range(self.count)]

    def get_cat_ids(self, index: int) -> list[int]:
        return [index]


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'tmp').mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / 'data').mkdir()
    for number in range(6):
        (tmp_path / 'data' / f'{number}.bin').write_bytes(bytes([number + 1, 7]))
    return str(tmp_path / 'data')


def numbers(folder: str, *rest: BaseTransform, **options: Any) -> Numbers:
    return Numbers(folder, pipeline=[Decode(), *(rest or [Shift(), Pack()])], **options)


def drawn(dataset: Any, order: Sequence[int], seed: int = 3) -> list[Any]:
    samples = []
    for position, index in enumerate(order):
        seed_generators(seed, position)
        samples.append(copy.deepcopy(dataset[index]))
    return samples


def decoded(dataset: Any, order: Sequence[int]) -> int:
    before = Decode.calls
    for index in order:
        dataset[index]
    return Decode.calls - before


@pytest.mark.parametrize('options', [{}, dict(writable=True), dict(policy='lru')])
def test_samples_are_those_of_the_dataset(folder: str, options: dict) -> None:
    bare = numbers(folder)
    cached = CachedDataset(numbers(folder), '1MB', 1, **options)
    order = [3, 1, 4, 1, 5, 0, 2, -1]
    for epoch in range(2):
        assert same(drawn(cached, order, epoch), drawn(bare, order, epoch))
    assert not same(drawn(cached, order, 0), drawn(cached, order, 1))
    assert decoded(cached, order) == 0
    assert cached.stats().samples == 6


def test_its_samples_may_be_written_into(folder: str) -> None:
    cached = CachedDataset(numbers(folder, Pack()), '1MB', 'Decode')
    for _ in range(3):
        sample = cached[2]
        assert int(sample['inputs'].max()) == 7
        sample['inputs'].fill_(99)
        sample['data_samples'].image.fill_(99)
        sample['pair'][0][:] = 99
        sample['more'][0].fill_(99)


def test_bev_samples_are_those_of_the_dataset(bev_root: str, tmp_path: Path) -> None:
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
    assert 'kept: LoadCameraImage, LoadBEVAnnotation, BEVResize; per draw: BEVR' in repr(cached)
    # As `on_bad_sample` does it, also where the stand-in comes from the cache.
    del cached
    warm = DATASETS.build(cfg | dict(dataset=inner | dict(test_mode=True)))
    warm._bad[3] = bare._bad[3] = True
    bare.test_mode = True
    assert same(drawn(warm, [3, 4, 3]), drawn(bare, [3, 4, 3]))
    assert bool((warm[3]['data_samples'].gt_bev == 1 << 14).all())
    assert not bool((warm[4]['data_samples'].gt_bev == 1 << 14).all())
    assert warm.stats().misses == 0


def test_a_bad_sample_is_skipped_as_before(own_bev_root: Path) -> None:
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


def test_stands_in_for_the_dataset(folder: str) -> None:
    inner = numbers(folder, lazy_init=True)
    cached = CachedDataset(inner, until='Decode', lazy_init=True)
    assert cached.describe() == 'cache: not made yet'
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


def test_a_pipeline_may_be_assigned(folder: str) -> None:
    """As hooks do that stop an augmentation."""
    cached = CachedDataset(numbers(folder), until='Decode')
    cached[1]
    cached.pipeline = Compose([Decode(), Pack()])
    assert decoded(cached, [1]) == 0  # the cached part is the same
    cached.pipeline = Compose([Pass(), Decode(), Pack()])
    assert decoded(cached, [1]) == 1
    assert same(drawn(cached, range(6)), drawn(numbers(folder, Pack()), range(6)))


def test_none_draws_another(folder: str) -> None:
    Path(folder, '2.bin').write_bytes(b'none')
    for rest in ([Pack()], [NoneAtTimes(), Pack()]):
        bare, cached = numbers(folder, *rest), CachedDataset(numbers(folder, *rest), until=1)
        for epoch in range(2):
            assert same(drawn(cached, range(6), epoch), drawn(bare, range(6), epoch))
    cached = CachedDataset(numbers(folder, Pack(), test_mode=True), until=1)
    with pytest.raises(Exception, match='Test time pipline should not get `None`'):
        cached[2]


# Where the cache is.


def test_known_random_transforms_are_refused(folder: str) -> None:
    pipeline = [Decode(), dict(type='RandomFlip', prob=0.5), Pack()]
    for until in ('Pack', 2, 3):
        with pytest.raises(
            ValueError,
            match=rf'until={until!r}: RandomFlip is random .transform 2 of 3.*last .* is .Decode',
        ):
            CachedDataset(Numbers(folder, pipeline=pipeline), until=until)
    nested = [
        Decode(),
        dict(type='EachCamera', transforms=[dict(type='BEVRandomCrop', size=(9, 9))]),
    ]
    with pytest.raises(ValueError, match='BEVRandomCrop in EachCamera is random'):
        CachedDataset(Numbers(folder, pipeline=nested), until=2)
    cached = CachedDataset(Numbers(folder, pipeline=pipeline))
    assert 'kept: Decode; per draw: RandomFlip, Pack' in cached.describe()
    with pytest.raises(ValueError, match='nothing to cache .* RandomFlip comes first'):
        CachedDataset(Numbers(folder, pipeline=pipeline[1:]))


def test_mmseg_names_are_known(folder: str) -> None:
    with pytest.raises(ValueError, match='PhotoMetricDistortion is random'):
        CachedDataset(
            Numbers(folder, pipeline=[Decode(), dict(type='mmseg.PhotoMetricDistortion')]), until=2
        )


@pytest.mark.parametrize(
    ('transform', 'what'),
    [(Shift(), 'Shift draws random numbers'), (Counts(), 'Counts does not give the same twice')],
)
def test_others_are_found_by_trial(folder: str, transform: BaseTransform, what: str) -> None:
    dataset = numbers(folder, Pass(), transform, Pack())
    before = generator_states()
    with pytest.raises(ValueError, match=rf"until='Pack': {what} .transform 3 of 4.*is 'Pass'"):
        CachedDataset(dataset, until='Pack')
    cached = CachedDataset(dataset)
    assert same(before, generator_states())
    assert cached.pipeline.count == 2


def test_the_last_of_a_type_and_all_without_randomness(folder: str) -> None:
    transforms = [Pass(), Decode(), Pass(), Pack()]
    assert CachedDataset(Numbers(folder, pipeline=transforms), until='Pass').pipeline.count == 3
    cached = CachedDataset(Numbers(folder, pipeline=transforms))
    assert cached.pipeline.count == 4
    for _ in range(2):
        assert same(drawn(cached, range(6)), drawn(numbers(folder, Pack()), range(6)))


@pytest.mark.parametrize('until', ['Missing', 0, 4, -1, True, 1.5])
def test_no_such_place(folder: str, until: Any) -> None:
    with pytest.raises(ValueError, match=rf'CachedDataset.until.*{until!r}'):
        CachedDataset(numbers(folder), until=until)


def test_other_wrong_arguments(folder: str) -> None:
    with pytest.raises(ValueError, match='CachedDataset.budget must be .* found .much.'):
        CachedDataset(numbers(folder), 'much')
    with pytest.raises(ValueError, match="CachedDataset.policy must be .* found 'mru'"):
        CachedDataset(numbers(folder), policy='mru')
    with pytest.raises(TypeError, match='found RepeatDataset; wrappers .* go around CachedDataset'):
        CachedDataset(dict(type='RepeatDataset', times=2, dataset=numbers(folder)))


@pytest.mark.parametrize('transform', [WritesInPlace(), DrawsInPlace()])
def test_writing_into_the_cache_is_told_at_the_first_draw(
    folder: str, transform: BaseTransform
) -> None:
    name = type(transform).__name__
    cached = CachedDataset(numbers(folder, transform, Pack()), until='Decode')
    for _ in range(2):
        with pytest.raises(ValueError, match=rf'{name} writes into .*writable=True'):
            cached[1]
    for options in (dict(writable=True), dict(policy='lru')):
        cached = CachedDataset(numbers(folder, transform, Pack()), until='Decode', **options)
        bare = numbers(folder, transform, Pack())
        for _ in range(2):
            assert same(drawn(cached, range(6)), drawn(bare, range(6)))


def test_other_errors_pass(folder: str) -> None:
    Path(folder, '1.bin').write_bytes(b'broken')
    cached = CachedDataset(numbers(folder), until=1)
    for _ in range(2):
        with pytest.raises(OSError, match='1.bin is broken'):
            cached[1]


# Several processes, and restarts.


def test_workers_share_what_is_decoded(folder: str) -> None:
    cached = CachedDataset(numbers(folder), until=1)
    assert in_child(decoded, cached, [0, 1, 2]) == 3
    assert in_child(decoded, cached, range(6)) == 3
    assert decoded(cached, range(6)) == 0


def test_ranks_share_what_is_decoded(folder: str) -> None:
    cached = CachedDataset(numbers(folder), until=1)
    assert decoded(cached, range(6)) == 6
    # Built anew, from its config.
    assert in_child(decoded_by_rank, folder) == REPEATS  # to see whether it is random


def decoded_by_rank(folder: str) -> int:
    before = Decode.calls
    decoded(CachedDataset(numbers(folder), until=1), range(6))
    return Decode.calls - before


def spawned(pipe: Any) -> None:
    dataset = pipe.recv()
    pipe.send((drawn(dataset, range(6)), Decode.calls))


@pytest.mark.slow
def test_spawned_workers_share_what_is_decoded(folder: str) -> None:
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
    assert decoded(cached, [5]) == 0  # that was it


def test_pickled_it_is_the_same(folder: str) -> None:
    cached = CachedDataset(numbers(folder), until=1)
    decoded(cached, range(6))
    other = pickle.loads(pickle.dumps(cached))
    assert decoded(other, range(6)) == 0
    assert same(drawn(other, range(6)), drawn(cached, range(6)))
    assert copy.deepcopy(cached).stats().samples == 6


def test_warm_after_a_restart_but_for_files_that_changed(folder: str, tmp_path: Path) -> None:
    where = str(tmp_path / 'cache')
    assert decoded(CachedDataset(numbers(folder), until=1, folder=where), range(6)) == 6
    Path(folder, '2.bin').write_bytes(b'new content')
    status = os.stat(f'{folder}/4.bin')
    os.utime(f'{folder}/4.bin', ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    warm = CachedDataset(numbers(folder), until=1, folder=where)
    assert decoded(warm, range(6)) == 2
    assert decoded(warm, range(6)) == 0
    assert same(drawn(warm, range(6)), drawn(numbers(folder), range(6)))


def test_other_samples_or_transforms_are_another_cache(folder: str, tmp_path: Path) -> None:
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


def test_a_full_budget_is_no_error(folder: str) -> None:
    cached = CachedDataset(numbers(folder), 20_000, until=1)
    bare = numbers(folder)
    for epoch in range(2):
        assert same(drawn(cached, range(6), epoch), drawn(bare, range(6), epoch))
    stats = cached.stats()
    assert (stats.samples, stats.hits, stats.misses) == (3, 3, 9)
    assert cached.describe().startswith('cache: 3 of 6 samples, 0.02 of 0.02 MB, 25 % hits')


def test_what_cannot_be_kept_names_the_transform(folder: str) -> None:
    class Opens(BaseTransform):
        def transform(self, results: dict) -> dict:
            return results | dict(lock=threading.Lock())

    cached = CachedDataset(numbers(folder, Opens()), until=1)
    cached.pipeline.count = 2
    with pytest.raises(TypeError, match='what Opens returns cannot be pickled .* earlier'):
        cached[0]


# What tells one cache from another.


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    messages: list[str] = []
    monkeypatch.setattr(cached_dataset, 'report', messages.append)
    return messages


class Holds(BaseTransform):
    def __init__(self, value: Any) -> None:
        self.value = value

    def transform(self, results: dict) -> dict:
        return results


def adder(number: int) -> Any:
    def add(value: int) -> int:
        return value + number

    return add


def table(last: float) -> np.ndarray:
    values = np.zeros(3000)
    values[1500] = last
    return values


def mapped(value: Any) -> KeyMapper:
    return KeyMapper(transforms=[Holds(value)], mapping=dict(img='img'))


@pytest.mark.parametrize(
    'make',
    [
        table,
        adder,
        mapped,
        lambda v: torch.full((2000,), v),
        lambda v: [{'a': (Holds(v),)}],
        lambda v: re.compile(str(v)),
        lambda v: functools.partial(int, base=v),
    ],
)
def test_fingerprints_tell_what_is_inside(make: Any) -> None:
    one, other, again = (fingerprint_of([Holds(make(value))]) for value in (1, 2, 1))
    assert one == again
    assert one != other
    assert not one[1]


def test_fingerprints_of_the_odd() -> None:
    assert fingerprint_of([Holds({0, 8})]) == fingerprint_of([Holds({8, 0})])
    cyclic = Holds(None)
    cyclic.value = [cyclic]
    assert not fingerprint_of([cyclic])[1]
    assert fingerprint_of([Holds(threading.Lock())])[1] == {'lock'}


def test_what_cannot_be_compared_is_not_shared(
    folder: str, tmp_path: Path, said: list[str]
) -> None:
    dataset = numbers(folder, Holds(threading.Lock()), Pack())
    cached = CachedDataset(dataset, until=2, folder=str(tmp_path / 'cache'))
    assert decoded(cached, [1, 1]) == 1
    assert not (tmp_path / 'cache').exists()
    assert 'in memory' in cached.describe()
    other = CachedDataset(numbers(folder, Holds(threading.Lock()), Pack()), until=2)
    assert decoded(other, [1]) == 1
    assert 'transforms hold what cannot be compared (lock)' in ''.join(said)


def test_code_and_versions_are_part_of_the_key(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    for number in (1, 2, 1):
        path = tmp_path / f'code_{len(found)}.py'
        path.write_text(f'class T:\n    def __call__(self, x):\n        return x + {number}\n')
        spec = importlib.util.spec_from_file_location('own_code', path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, 'own_code', module)
        spec.loader.exec_module(module)
        found.append(fingerprint_of([module.T()]))
    assert found[0] == found[2] != found[1]
    cached = CachedDataset(numbers(folder), until=1)
    before = cached._key()
    monkeypatch.setattr(sys.modules['mmseg'], '__version__', '99')
    assert cached._key() != before


class Reuses(BaseTransform):
    """Writes into memory of its own, each time the same."""

    def __init__(self) -> None:
        self.buffer = np.zeros((40, 50, 3), np.uint8)

    def transform(self, results: dict) -> dict:
        self.buffer[:] = results['img']
        return results | dict(img=self.buffer, more=[self.buffer])


def test_buffers_of_transforms_stay_theirs(folder: str) -> None:
    cached = CachedDataset(numbers(folder, Reuses(), Shift()), until='Reuses')
    bare = numbers(folder, Reuses(), Shift())
    assert same(drawn(cached, range(6)), drawn(bare, range(6)))


def test_files_are_known_under_any_key(tmp_path: Path) -> None:
    path = tmp_path / 'a.bin'
    for info in (dict(img_path=path), dict(camera=str(path)), dict(views=[dict(x=path)])):
        path.write_bytes(b'1')
        before = identity_of(info)
        path.write_bytes(b'22')
        assert identity_of(info) != before


@pytest.mark.parametrize(
    'generator', [np.random.default_rng(1), np.random.RandomState(1), torch.Generator()]
)
def test_own_generators_are_refused(folder: str, generator: Any) -> None:
    draw = getattr(generator, 'normal', generator)
    for value in ([dict(a=Holds(generator))], draw):
        with pytest.raises(ValueError, match=f'{type(generator).__name__} in Holds is random'):
            CachedDataset(numbers(folder, Holds(value)), until=2)


class AtTimes(BaseTransform):
    """Random without a random number, and seldom."""

    calls = 0

    def transform(self, results: dict) -> dict:
        self.calls += 1
        return results | dict(flag=self.calls == 6)


def test_what_is_seldom_random_is_found(folder: str) -> None:
    with pytest.raises(ValueError, match='AtTimes does not give the same twice'):
        CachedDataset(numbers(folder, AtTimes()), until=2)


def test_a_pipeline_that_cannot_be_cached_may_be_assigned(folder: str, said: list[str]) -> None:
    cached = CachedDataset(numbers(folder), until='Decode')
    old = cached.pipeline
    cached.pipeline = Compose([Pass(), Reads()])
    assert 'is used without a cache: CachedDataset.until' in ''.join(said)
    assert old.cache._arena is None
    assert cached[1]['img'] == b'\2\7'
    assert cached.describe() == 'no cache'
    cached.pipeline = Compose([Decode(), Pack()])
    assert decoded(cached, [1, 1]) == 1


class Reads(BaseTransform):
    def transform(self, results: dict) -> dict:
        return dict(img=Path(results['img_path']).read_bytes())


class WithSets(Numbers):
    order = (0, 8)

    def load_data_list(self) -> list[dict]:
        return [one | dict(labels=set(self.order)) for one in super().load_data_list()]


@pytest.mark.parametrize('serialize', [False, True])
def test_keys_do_not_depend_on_the_order_of_sets(
    folder: str, serialize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for order in ((0, 8), (8, 0), (0, 9)):
        monkeypatch.setattr(WithSets, 'order', order)
        dataset = WithSets(folder, pipeline=[Decode()], serialize_data=serialize)
        keys.append(CachedDataset(dataset, until=1)._key())
    assert keys[0] == keys[1] != keys[2]


def test_a_folder_of_old_files_starts_afresh(folder: str, tmp_path: Path) -> None:
    options: dict[str, Any] = dict(budget=40_000, until=1, folder=str(tmp_path / 'cache'))
    for _ in range(2):
        for number in range(6):
            os.utime(f'{folder}/{number}.bin', ns=(7, os.stat(folder).st_mtime_ns - number))
        cached = CachedDataset(numbers(folder), **options)
        assert decoded(cached, range(6)) == 6
        assert decoded(cached, range(6)) == 0
        del cached
        os.utime(folder)
