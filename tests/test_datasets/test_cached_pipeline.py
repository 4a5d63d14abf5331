"""Transforms after the cache may not change it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
from mmcv.transforms import BaseTransform

from mmtempo.datasets.cache_split import same
from mmtempo.datasets.cached_dataset import CachedDataset
from mmtempo.datasets.cached_pipeline import identity_of
from tests.testing.cached_numbers import Pack, Shift, drawn, numbers

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


def test_identity_depends_on_files_under_any_key(tmp_path: Path) -> None:
    path = tmp_path / 'a.bin'
    for info in (dict(img_path=path), dict(camera=str(path)), dict(views=[dict(x=path)])):
        path.write_bytes(b'1')
        before = identity_of(info)
        path.write_bytes(b'22')
        assert identity_of(info) != before
