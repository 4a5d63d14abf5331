"""Stalls caused on purpose in a real training are all found with their cause, and no others."""

from __future__ import annotations

import gc
import json
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner
from torch.utils.data import get_worker_info

from mmtempo.checkpoint.io.writer import DurableWriter
from tests.testing.toy import SPARSE, ToyDataset, config, with_evaluation

STEP = 0.04
LATE, SLOW_HOOK, EVALUATION = 0.6, 0.5, 1.0
PAGES = 1 << 30  # bytes of newly allocated memory that are touched
OBJECTS = 4_000_000
SAVES = 60  # iterations between two saves


@DATASETS.register_module()
class LateAtTimes(ToyDataset):
    """Dataset in which some samples, or all samples of one worker, are slow."""

    def __init__(self, late: tuple[int, ...] = (), worker: int | None = None) -> None:
        super().__init__()
        self.late, self.worker = late, worker

    def __getitem__(self, index: int) -> dict:
        info = get_worker_info()
        if index in self.late or (info is not None and info.id == self.worker):
            time.sleep(LATE / (1 if self.worker is None else 2))
        return super().__getitem__(index)


@HOOKS.register_module()
class Truth(Hook):
    """Hook that runs functions within the step of given iterations, and measures their time."""

    at: dict[int, Callable[[], None]] = {}
    took: dict[int, float] = {}
    times: list[float] = []

    def before_train(self, runner: Any) -> None:
        self.times.append(time.perf_counter())

        def step(*_: Any) -> None:
            if not runner.model.training:
                return
            time.sleep(STEP)
            start = time.perf_counter()
            self.at.get(runner.iter + 1, lambda: None)()
            if runner.iter + 1 in self.at:
                self.took[runner.iter + 1] = time.perf_counter() - start

        self.handle = runner.model.register_forward_pre_hook(step)

    def after_train(self, runner: Any) -> None:
        self.handle.remove()
        self.times.append(time.perf_counter())


@HOOKS.register_module()
class SlowOnce(Hook):
    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == 90:
            time.sleep(SLOW_HOOK)


@HOOKS.register_module()
class LongEvaluation(Hook):
    took: dict[int, float] = {}
    priority = 'VERY_HIGH'

    def before_val(self, runner: Any) -> None:
        self.start = time.perf_counter()

    def after_val(self, runner: Any) -> None:
        self.took[runner.iter] = time.perf_counter() - self.start

    def after_val_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        time.sleep(EVALUATION / 20)


def collect() -> None:
    """Collect garbage among the objects of `many_objects`."""
    gc.collect()


def fault() -> None:
    with mmap.mmap(-1, PAGES) as memory:
        for offset in range(0, PAGES, mmap.PAGESIZE):
            memory[offset] = 1


class SlowDisk:
    """Stops the writer process at the second save, until the next save has waited a second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited, self.saves, self.held = 0.0, 0, 0
        wait, save = DurableWriter.wait, DurableWriter.save
        disk = self

        def wait_and_measure(writer: Any) -> float:
            if disk.held:
                threading.Timer(1.0, os.kill, (disk.held, signal.SIGCONT)).start()
                disk.held = 0
            waited = wait(writer)
            disk.waited = max(disk.waited, waited)
            return waited

        def save_slowly(writer: Any, *args: Any, **kwargs: Any) -> Any:
            found = save(writer, *args, **kwargs)
            process = writer._thread._process
            disk.saves += 1
            if disk.saves == 2:  # the first save starts the process
                os.kill(process.pid, signal.SIGSTOP)
                disk.held = process.pid
            return found

        monkeypatch.setattr(DurableWriter, 'wait', wait_and_measure)
        monkeypatch.setattr(DurableWriter, 'save', save_slowly)


def monitored(work: Path, workers: int, iterations: int) -> Config:
    cfg = with_evaluation(config(work, SPARSE))
    cfg.train_cfg.update(type='PrefetchIterBasedTrainLoop', max_iters=iterations, val_interval=130)
    cfg.val_cfg.type = 'PrefetchValLoop'
    cfg.train_dataloader.update(num_workers=workers, prefetch_factor=1, persistent_workers=True)
    cfg.train_dataloader.dataset.type = 'LateAtTimes'
    cfg.custom_hooks = [dict(type=name) for name in ('Truth', 'SlowOnce', 'LongEvaluation')]
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook')
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', interval=SAVES)
    return cfg


@pytest.fixture
def many_objects() -> Any:
    """Create objects that a collection visits, and disable automatic collections."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield [[] for _ in range(OBJECTS)]
    gc.enable()
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures('many_objects')
def test_each_cause_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    disk = SlowDisk(monkeypatch)
    monkeypatch.setattr(Truth, 'took', {})
    monkeypatch.setattr(LongEvaluation, 'took', {})
    monkeypatch.setattr(Truth, 'at', {70: collect, 110: fault})
    cfg = monitored(tmp_path, workers=2, iterations=240)
    cfg.train_dataloader.dataset.late = (7,)
    monkeypatch.setattr(Truth, 'times', [])
    Runner.from_cfg(cfg).train()
    wall = Truth.times[1] - Truth.times[0]
    summary = json.loads((tmp_path / 'tempo_summary.json').read_text())
    found = {one['iter']: one for one in summary['stalls'] if one['category'] != 'warm-up'}
    print(
        *(f'{one["iter"]} {one["category"]} {one["text"]}' for one in summary['stalls']), sep='\n'
    )

    def check(number: int, category: str, cause: str, seconds: float) -> None:
        stall = found.pop(number)
        assert (stall['category'], stall['cause']) == (category, cause)
        assert stall['lost'] == pytest.approx(seconds, rel=0.1)

    check(70, 'gc', 'garbage collection', Truth.took[70])
    check(90, 'hook', 'SlowOnce', SLOW_HOOK)
    check(110, 'host', 'page faults', Truth.took[110])
    check(130, 'evaluation', 'evaluation', LongEvaluation.took[130])
    assert found.pop(240)['category'] == 'evaluation'  # with a save and the end of the writer
    check(3 * SAVES, 'checkpoint', 'checkpoint: wait for the writer', disk.waited)
    # All other stalls are caused by the slow sample.
    assert found
    for stall in found.values():
        assert stall['category'] == 'data'
        assert stall['evidence']['slowest_sample'] == 7
        assert stall['evidence']['sample_seconds'] == pytest.approx(LATE, rel=0.1)
        if stall['iter'] % SAVES:  # an iteration with a save lost time to it as well
            assert stall['lost'] == pytest.approx(stall['evidence']['waited'], rel=0.1)
    assert sum(one['seconds'] for one in summary['phases'].values()) >= 0.99 * summary['seconds']
    assert summary['seconds'] >= 0.99 * wall
    assert summary['phases']['unexplained']['share'] < 0.01


@pytest.mark.slow
@pytest.mark.parametrize('workers', [4, 8])
def test_slow_worker_is_found_as_a_period(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(Truth, 'at', {})
    slow = 2
    cfg = monitored(tmp_path, workers, iterations=160)
    cfg.train_dataloader.dataset.worker = slow
    Runner.from_cfg(cfg).train()
    summary = json.loads((tmp_path / 'tempo_summary.json').read_text())
    (period,) = [one for one in summary['periods'] if one['cause'] == f'worker {slow} was late']
    assert (period['every'], period['what'], period['worker']) == (workers, 'num_workers', slow)
    assert period['samples']
    late = [one for one in summary['stalls'] if one['cause'] == period['cause']]
    made = {sample for one in late for sample in one['evidence']['samples']}
    assert set(period['samples']) <= made
    others = [one for one in summary['stalls'] if one['category'] == 'data' and one not in late]
    assert len(others) <= 2, 'only the first batches, while workers start'
