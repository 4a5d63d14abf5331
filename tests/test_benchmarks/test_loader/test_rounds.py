"""A round measures the batches that it counts, with the cache in the expected state."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from typing import Any

import cv2
import pytest
import torch
from mmengine.registry import DATASETS

from mmtempo.benchmarks.loader import rounds
from mmtempo.benchmarks.loader.arms import (
    ARMS,
    BATCH,
    FILLING,
    LOADERS,
    PIPELINES,
    STOCK,
    WARM,
    Source,
    Stream,
)
from mmtempo.benchmarks.loader.rounds import (
    as_in_training,
    check_same_pixels,
    run_round,
    time_start,
)

pytestmark = pytest.mark.usefixtures('small_pipelines')


@pytest.mark.parametrize('suffix', ['jpg', 'png'])
def test_pipelines_that_differ_from_stock_are_an_error(
    pictures: str, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_same_pixels(pictures, suffix, 2)
    for name in ('fast', 'rounded', 'fused'):
        with monkeypatch.context() as patch:
            without = [one for one in PIPELINES[name] if 'prob' not in one]
            patch.setitem(PIPELINES, name, without)
            with pytest.raises(RuntimeError, match=rf'{suffix} \d: .* differs from stock'):
                check_same_pixels(pictures, suffix, 2)


class Fake:
    """Loader that counts batches, by which the clocks advance."""

    def __init__(self) -> None:
        self.taken = self.closed = 0

    def __call__(self, dataset: Any, workers: int) -> Stream:
        return Stream(self.take, self.close)

    def take(self) -> None:
        self.taken += 1

    def close(self) -> None:
        self.closed += 1


def test_round_counts_the_batches_after_its_lead(
    pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    monkeypatch.setitem(LOADERS, 'mmengine', fake)
    monkeypatch.setattr('time.perf_counter', lambda: 100.0 * fake.taken)
    monkeypatch.setattr('time.process_time', lambda: 10.0 * fake.taken)
    source = Source(ARMS[STOCK], pictures, 'png')
    window = run_round(source, 0, lead=3, count=5)
    assert (fake.taken, fake.closed) == (8, 1)
    assert window.seconds == 500 / (5 * BATCH)
    if window.cpu is not None:
        assert window.cpu == 50 / (5 * BATCH)
    with pytest.raises(RuntimeError, match='expected 2 workers, found 0'):
        run_round(source, 2, lead=1, count=1)
    assert fake.closed == 2


def test_start_up_includes_building_the_data_set(
    pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, seen = itertools.count(), []

    def fake(dataset: Any, workers: int) -> Stream:
        seen.append((dataset['type'], workers, next(ticks)))
        return Stream(lambda: next(ticks), lambda: None)

    monkeypatch.setitem(LOADERS, 'mmtempo', fake)
    monkeypatch.setattr('time.perf_counter', lambda: next(ticks))
    assert time_start(Source(ARMS[FILLING], pictures, 'png'), 2) == 3
    assert seen == [('CachedDataset', 2, 1)]


def test_cache_in_the_wrong_state_is_an_error(
    pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, warm = Source(ARMS[FILLING], pictures, 'png'), Source(ARMS[WARM], pictures, 'png')
    for source in (cold, warm, cold, warm):  # each time, independent of the caches of the others
        run_round(source, 0, lead=1, count=1)
    assert warm.dataset().stats().samples == 12
    full, empty = warm.dataset(), DATASETS.build(cold.config())
    monkeypatch.setattr(cold, 'dataset', lambda: full)
    with pytest.raises(RuntimeError, match='expected an empty one'):
        run_round(cold, 0, lead=1, count=1)
    monkeypatch.setattr(warm, 'dataset', lambda: empty)
    with pytest.raises(RuntimeError, match='expected all samples'):
        run_round(warm, 0, lead=1, count=1)


def test_round_ends_its_workers(pictures: str) -> None:
    for name in (STOCK, WARM):
        assert run_round(Source(ARMS[name], pictures, 'jpg'), 1, lead=1, count=2).seconds > 0
        assert multiprocessing.active_children() == []


@pytest.mark.skipif(not hasattr(os, 'fork'), reason='needs fork')
def test_cpu_time_of_workers_counts() -> None:
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


def test_thread_settings_are_restored() -> None:
    cv2.setNumThreads(2)
    threads = torch.get_num_threads()
    with as_in_training():
        assert torch.get_num_threads() == 1
        assert cv2.getNumThreads() == 1
    assert (cv2.getNumThreads(), torch.get_num_threads()) == (2, threads)
    cv2.setNumThreads(0)
