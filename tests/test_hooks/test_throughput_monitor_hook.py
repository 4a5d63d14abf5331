"""A training with causes put into it: each one is listed, with its seconds, and nothing else."""

from __future__ import annotations

import gc
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner

from mmtempo.core.iteration_counters import IterationCounters
from mmtempo.hooks.checkpoint_saving import CheckpointSaving
from mmtempo.hooks.training_monitor import TrainingMonitor

from .toy import SPARSE, ToyDataset, config, with_evaluation

SECOND = 1_000_000_000
STEP = 0.1  # seconds of a calm iteration
SLOW_SAMPLE, SLOW_HOOK, GC, FAULTS, SAVE, EVALUATION = 2.5, 0.9, 0.7, 0.8, 1.5, 30.0


class Clock:
    """Goes on when something is done; of the host, of collections and of the kernel."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.collected = self.system = 0.0
        self.minor = 0
        self.noise = random.Random(0)

    def __call__(self) -> int:
        return self.now

    def go(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


clock = Clock()


@pytest.fixture(autouse=True)
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock.__init__()  # type: ignore[misc]
    monkeypatch.setattr(TrainingMonitor, 'clock', clock)

    def read(self: Any) -> tuple:
        return 0, clock.minor, 0, clock.system, 0.0, clock.collected, 0

    monkeypatch.setattr(IterationCounters, 'read', read)
    return clock


@DATASETS.register_module()
class SlowAtTimes(ToyDataset):
    """Some of its samples take long to load."""

    slow: tuple[int, ...] = (7,)

    def __getitem__(self, index: int) -> dict:
        clock.go(SLOW_SAMPLE if index in self.slow else 0.001)
        return super().__getitem__(index)


@HOOKS.register_module()
class Works(Hook):
    """The step itself, and what is put into it; iterations from 1."""

    at: dict[int, Callable[[], None]] = {}

    def before_train(self, runner: Any) -> None:
        def step(*_: Any) -> None:
            if runner.model.training:
                clock.go(STEP * clock.noise.lognormvariate(0, 0.03))
                self.at.get(runner.iter + 1, lambda: None)()

        self.handle = runner.model.register_forward_pre_hook(step)

    def after_train(self, runner: Any) -> None:
        self.handle.remove()

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        clock.go(0.002)


@HOOKS.register_module()
class SlowNowAndThen(Hook):
    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == 140:
            clock.go(SLOW_HOOK)


@HOOKS.register_module()
class SlowEvaluation(Hook):
    def after_val_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        clock.go(EVALUATION / 20)


def collect() -> None:
    clock.go(GC)
    clock.collected += GC


def fault() -> None:
    clock.go(FAULTS)
    clock.minor += 50_000
    clock.system += 0.9 * FAULTS


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer takes its time: who saves again has to wait for it."""
    finish = CheckpointSaving.finish

    def finish_slowly(self: Any, is_last: bool = False) -> float:
        if self._running:
            clock.go(SAVE)
        return finish(self, is_last)

    monkeypatch.setattr(CheckpointSaving, 'finish', finish_slowly)


def monitored(work: Path, hooks: dict, iterations: int = 300, **options: Any) -> Config:
    cfg = with_evaluation(config(work, hooks))
    cfg.train_cfg.update(max_iters=iterations, val_interval=200)
    cfg.train_dataloader.dataset.type = 'SlowAtTimes'
    cfg.custom_hooks = [dict(type=name) for name in ('Works', 'SlowNowAndThen', 'SlowEvaluation')]
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook', watch_interval=0, **options)
    return cfg


def summary_of(work: Path) -> dict:
    return json.loads((work / 'tempo_summary.json').read_text())


def lines_of(work: Path) -> list[dict]:
    return [json.loads(line) for line in (work / 'tempo.jsonl').read_text().splitlines()]


def test_each_cause_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Works, 'at', {100: collect, 120: fault})
    cfg = monitored(tmp_path, SPARSE)
    gc.disable()
    try:
        Runner.from_cfg(cfg).train()
    finally:
        gc.enable()
    summary = summary_of(tmp_path)
    found = {stall['iter']: stall for stall in summary['stalls']}
    batches = Runner.build_dataloader(cfg.train_dataloader, seed=3)
    order = [index for _, batch in zip(range(300), batches.batch_sampler) for index in [batch]]
    late = {number for number, batch in enumerate(order, 1) if 7 in batch}
    wanted: dict[int, tuple[str, str, float]] = {
        **dict.fromkeys(late, ('data', 'waiting for data', SLOW_SAMPLE)),
        100: ('gc', 'garbage collection', GC),
        120: ('memory', 'page faults', FAULTS),
        140: ('hook', 'SlowNowAndThen', SLOW_HOOK),
        200: ('evaluation', 'evaluation', EVALUATION),
        300: ('evaluation', 'evaluation', EVALUATION),
    }
    assert {100, 120, 140, 200, 300}.isdisjoint(late)
    assert set(found) == set(wanted)
    for number, (category, cause, seconds) in wanted.items():
        stall = found[number]
        assert (stall['category'], stall['cause']) == (category, cause)
        assert math.isclose(stall['lost'], seconds, rel_tol=0.1)
    total = sum(seconds for *_, seconds in wanted.values())
    assert math.isclose(summary['lost']['seconds'], total, rel_tol=0.1)
