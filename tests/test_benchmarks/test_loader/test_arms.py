"""The loaders of the benchmark make the same of the same files, and a round is what it says."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
from mmengine.registry import DATASETS

from mmtempo.benchmarks.loader import arms, rounds
from mmtempo.benchmarks.loader.arms import (
    ARMS,
    BATCH,
    FILLING,
    LOADERS,
    PIPELINES,
    STOCK,
    WARM,
    Arm,
    Source,
    Stream,
)
from mmtempo.benchmarks.loader.pictures import segment, write_pictures
from mmtempo.benchmarks.loader.rounds import (
    as_in_training,
    check_same_pixels,
    run_round,
    time_start,
)

PICTURES = 12


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp('pictures'))
    write_pictures(folder, PICTURES, (160, 90))
    return folder


@pytest.fixture(scope='module', autouse=True)
def small() -> Iterator[None]:
    """Less to compute: 200 x 120, of which 64 x 64; and mmengine's data sets collect garbage."""
    with pytest.MonkeyPatch.context() as patch, as_in_training():
        patch.setattr('gc.collect', lambda: 0)
        patch.setitem(arms.RESIZE, 'scale', (200, 120))
        patch.setitem(arms.CROP, 'crop_size', (64, 64))
        for pipeline in PIPELINES.values():
            for transform in pipeline:
                if 'crop_size' in transform:
                    patch.setitem(transform, 'crop_size', (64, 64))
        yield


def read(path: str) -> Any:
    return cv2.imread(path, cv2.IMREAD_UNCHANGED)


def test_pictures_are_the_same_in_both_formats(root: str) -> None:
    for number in range(PICTURES):
        png = read(f'{root}/img_dir/png/{number:06d}.png')
        jpg = read(f'{root}/img_dir/jpg/{number:06d}.jpg')
        assert png.shape == jpg.shape == (90, 160, 3)
        assert cv2.absdiff(png, jpg).mean() < 8
        classes = read(f'{root}/ann_dir/{number:06d}.png')
        assert (classes.shape, classes.dtype) == ((90, 160), 'uint8')
        assert len(set(classes.flat)) > 1
        assert (classes == segment(png)).all()
    assert len(json.loads(Path(root, 'calib.json').read_text())) == PICTURES


@pytest.mark.parametrize('name', ARMS)
def test_every_arm_makes_batches_of_the_same_form(root: str, name: str) -> None:
    if not ARMS[name].is_there:
        pytest.skip(f'{ARMS[name].needs} is not installed')
    source = Source(ARMS[name], root, 'png')
    stream = LOADERS[source.arm.loader](source.dataset(), 0)
    first, second = stream.take(), stream.take()
    stream.close()
    assert len(first['inputs']) == len(first['data_samples']) == BATCH
    assert {image.shape for image in first['inputs']} == {(3, 64, 64)}
    paths = [sample.img_path for batch in (first, second) for sample in batch['data_samples']]
    assert len(set(paths)) == 2 * BATCH  # in a random order, and none twice
    assert paths != sorted(paths)


def test_stock_is_stock() -> None:
    assert ARMS[STOCK] == Arm('mmengine', 'stock')
    assert [transform['type'] for transform in PIPELINES['stock']] == [
        *('LoadImageFromFile', 'LoadAnnotations', 'Resize', 'RandomCrop', 'RandomFlip'),
        *('PhotoMetricDistortion', 'PackSegInputs'),
    ]


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_pixels_are_the_same(root: str, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_same_pixels(root, suffix, 2)
    for name in ('fast', 'rounded', 'fused'):
        with monkeypatch.context() as patch:
            without = [one for one in PIPELINES[name] if 'prob' not in one]
            patch.setitem(PIPELINES, name, without)
            with pytest.raises(RuntimeError, match=rf'{suffix} \d: .* is not what stock gives'):
                check_same_pixels(root, suffix, 2)


class Fake:
    """A loader that counts, and lets the clocks tick."""

    def __init__(self) -> None:
        self.taken = self.closed = 0

    def __call__(self, dataset: Any, workers: int) -> Stream:
        return Stream(self.take, self.close, dataset)

    def take(self) -> None:
        self.taken += 1

    def close(self) -> None:
        self.closed += 1


def test_a_round_counts_what_comes_behind_its_lead(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    monkeypatch.setitem(LOADERS, 'mmengine', fake)
    monkeypatch.setattr('time.perf_counter', lambda: 100.0 * fake.taken)
    monkeypatch.setattr('time.process_time', lambda: 10.0 * fake.taken)
    source = Source(ARMS[STOCK], root, 'png')
    window = run_round(source, 0, lead=3, count=5)
    assert (fake.taken, fake.closed) == (8, 1)
    assert window.seconds == 500 / (5 * BATCH)
    if window.cpu is not None:
        assert window.cpu == 50 / (5 * BATCH)
    with pytest.raises(RuntimeError, match='0 workers were started instead of 2'):
        run_round(source, 2, lead=1, count=1)
    assert fake.closed == 2


def test_start_up_includes_the_data_set(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, seen = itertools.count(), []

    def fake(dataset: Any, workers: int) -> Stream:
        seen.append((dataset['type'], workers, next(ticks)))
        return Stream(lambda: next(ticks), lambda: None, dataset)

    monkeypatch.setitem(LOADERS, 'mmtempo', fake)
    monkeypatch.setattr('time.perf_counter', lambda: next(ticks))
    assert time_start(Source(ARMS[FILLING], root, 'png'), 2) == 3
    assert seen == [('CachedDataset', 2, 1)]


def test_cold_is_cold_and_warm_is_warm(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cold, warm = Source(ARMS[FILLING], root, 'png'), Source(ARMS[WARM], root, 'png')
    for source in (cold, warm, cold, warm):  # each time, and whatever the others have cached
        run_round(source, 0, lead=1, count=1)
    assert warm.dataset().stats().samples == PICTURES
    full, empty = warm.dataset(), DATASETS.build(cold.config())
    monkeypatch.setattr(cold, 'dataset', lambda: full)
    with pytest.raises(RuntimeError, match='should have been empty'):
        run_round(cold, 0, lead=1, count=1)
    monkeypatch.setattr(warm, 'dataset', lambda: empty)
    with pytest.raises(RuntimeError, match='should have had all'):
        run_round(warm, 0, lead=1, count=1)


def test_with_real_workers(root: str) -> None:
    for name in (STOCK, WARM):
        assert run_round(Source(ARMS[name], root, 'jpg'), 1, lead=1, count=2).seconds > 0
        assert multiprocessing.active_children() == []


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_time_of_workers_counts() -> None:
    if rounds._cpu_of([]) is None:
        pytest.skip('CPU clocks of other processes are read on Linux only')
    tell, told = os.pipe()
    child = os.fork()
    if child == 0:
        while time.process_time() < 0.05:
            pass
        os.write(told, b'x')
        time.sleep(60)
    os.read(tell, 1)
    with_child, without = rounds._cpu_of([child]), rounds._cpu_of([])
    os.kill(child, 9)
    os.waitpid(child, 0)
    assert with_child is not None
    assert without is not None
    assert with_child - without >= 0.04


def test_settings_are_those_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    cv2.setNumThreads(2)
    threads = torch.get_num_threads()
    with as_in_training():
        assert torch.get_num_threads() == 1
        assert cv2.getNumThreads() == 1
    assert (cv2.getNumThreads(), torch.get_num_threads()) == (2, threads)
    cv2.setNumThreads(0)
