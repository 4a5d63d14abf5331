"""Transforms after the cache may not change it, and fingerprints identify those before it."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform, KeyMapper

from mmtempo.datasets.cache_split import same
from mmtempo.datasets.cached_dataset import CachedDataset
from mmtempo.datasets.cached_pipeline import fingerprint_of, identity_of
from tests.testing.cached_numbers import Holds, Pack, Shift, drawn, numbers

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked'),
    pytest.mark.usefixtures('own_temporary_folder'),
]


class WritesInPlace(BaseTransform):
    def transform(self, results: dict) -> dict:
        results['img'] += 1
        return results


class DrawsInPlace(BaseTransform):
    """A transform whose write OpenCV refuses, with another message than numpy."""

    def transform(self, results: dict) -> dict:
        cv2.rectangle(results['img'], (0, 0), (5, 5), (1, 2, 3))
        return results


class Reuses(BaseTransform):
    """A transform that returns the same buffer each time."""

    def __init__(self) -> None:
        self.buffer = np.zeros((40, 50, 3), np.uint8)

    def transform(self, results: dict) -> dict:
        self.buffer[:] = results['img']
        return results | dict(img=self.buffer, more=[self.buffer])


def test_returned_samples_may_be_written(folder: str) -> None:
    cached = CachedDataset(numbers(folder, Pack()), '1MB', 'Decode')
    for _ in range(3):
        sample = cached[2]
        assert int(sample['inputs'].max()) == 7
        sample['inputs'].fill_(99)
        sample['data_samples'].image.fill_(99)
        sample['pair'][0][:] = 99
        sample['more'][0].fill_(99)


@pytest.mark.parametrize('transform', [WritesInPlace(), DrawsInPlace()])
def test_transform_that_writes_into_the_cache_fails_at_the_first_draw(
    folder: str, transform: BaseTransform
) -> None:
    name = type(transform).__name__
    cached = CachedDataset(numbers(folder, transform, Pack()), until='Decode')
    for _ in range(2):
        with pytest.raises(ValueError, match=rf'{name} writes into .*writable=True'):
            cached[1]
    dataset = numbers(folder, transform, Pack())
    cached = CachedDataset(dataset, until='Decode', writable=True)
    bare = numbers(folder, transform, Pack())
    for _ in range(2):
        assert same(drawn(cached, range(6)), drawn(bare, range(6)))


def test_errors_of_transforms_are_unchanged(folder: str) -> None:
    Path(folder, '1.bin').write_bytes(b'broken')
    cached = CachedDataset(numbers(folder), until=1)
    for _ in range(2):
        with pytest.raises(OSError, match='1.bin is broken'):
            cached[1]


def test_unpicklable_output_names_the_transform(folder: str) -> None:
    class Opens(BaseTransform):
        def transform(self, results: dict) -> dict:
            return results | dict(lock=threading.Lock())

    cached = CachedDataset(numbers(folder, Opens()), until=1)
    cached.pipeline.count = 2
    with pytest.raises(TypeError, match='output of Opens cannot be pickled .* earlier'):
        cached[0]


def test_reused_buffers_of_transforms_stay_writable(folder: str) -> None:
    cached = CachedDataset(numbers(folder, Reuses(), Shift()), until='Reuses')
    bare = numbers(folder, Reuses(), Shift())
    assert same(drawn(cached, range(6)), drawn(bare, range(6)))


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
def test_fingerprints_depend_on_nested_values(make: Any) -> None:
    one, other, again = (fingerprint_of([Holds(make(value))]) for value in (1, 2, 1))
    assert one == again
    assert one != other
    assert not one[1]


def test_fingerprints_of_sets_cycles_and_locks() -> None:
    assert fingerprint_of([Holds({0, 8})]) == fingerprint_of([Holds({8, 0})])
    cyclic = Holds(None)
    cyclic.value = [cyclic]
    assert not fingerprint_of([cyclic])[1]
    assert fingerprint_of([Holds(threading.Lock())])[1] == {'lock'}


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


def test_identity_depends_on_files_under_any_key(tmp_path: Path) -> None:
    path = tmp_path / 'a.bin'
    for info in (dict(img_path=path), dict(camera=str(path)), dict(views=[dict(x=path)])):
        path.write_bytes(b'1')
        before = identity_of(info)
        path.write_bytes(b'22')
        assert identity_of(info) != before
