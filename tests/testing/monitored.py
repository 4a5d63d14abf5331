"""A toy training under the monitor, with a clock that only advances where a test says so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner

from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.monitor.training_monitor import TrainingMonitor
from mmtempo.system.process_counters import IterationCounters
from tests.testing.toy import ToyDataset, by_epoch, config, with_evaluation

SECOND = 1_000_000_000  # in nanoseconds
STEP = 0.1  # seconds of an iteration, about
# Seconds of what is slow.
SLOW_SAMPLE, SLOW_HOOK, GC, FAULTS, SAVE, EVALUATION = 2.5, 0.9, 0.7, 0.8, 1.5, 30.0


class Clock:
    """Fake times and counters of the host, the garbage collector and the kernel."""

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
    """A dataset of which some samples take long to load."""

    slow: tuple[int, ...] = (7,)

    def __getitem__(self, index: int) -> dict:
        clock.go(SLOW_SAMPLE if index in self.slow else 0.001)
        return super().__getitem__(index)


@HOOKS.register_module()
class Works(Hook):
    """Let each training step take time, and call `at` in some iterations, counted from 1."""

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
    """Let the first wait for each save take `SAVE` seconds."""
    wait = DurableWriter.wait
    waited: list[Any] = []

    def wait_long(self: Any) -> float:
        if self._last is not None and self._last not in waited:
            waited.append(self._last)
            clock.go(SAVE)
        return wait(self)

    monkeypatch.setattr(DurableWriter, 'wait', wait_long)


def monitored(work: Path, hooks: dict, iterations: int = 300, **options: Any) -> Config:
    cfg = with_evaluation(config(work, hooks))
    cfg.train_cfg.update(max_iters=iterations, val_interval=200)
    cfg.train_dataloader.dataset.type = 'SlowAtTimes'
    cfg.custom_hooks = [dict(type=name) for name in ('Works', 'SlowNowAndThen', 'SlowEvaluation')]
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook', watch_interval=0, **options)
    return cfg


def in_epochs(work: Path, hooks: dict, **options: Any) -> Config:
    cfg = by_epoch(monitored(work, hooks, **options), 15)
    cfg.train_cfg.val_interval = 10
    return cfg


def with_our_loop(work: Path, hooks: dict, **options: Any) -> Config:
    cfg = monitored(work, hooks, **options)
    cfg.train_cfg.type = 'PrefetchIterBasedTrainLoop'
    cfg.val_cfg.type = 'PrefetchValLoop'
    return cfg


def hook_of(runner: Runner, cls: type) -> Any:
    return next(hook for hook in runner.hooks if isinstance(hook, cls))


def summary_of(work: Path) -> dict:
    return json.loads((work / 'tempo_summary.json').read_text())


def lines_of(work: Path) -> list[dict]:
    return [json.loads(line) for line in (work / 'tempo.jsonl').read_text().splitlines()]


def log_of(work: Path) -> str:
    return '\n'.join(path.read_text() for path in sorted(work.rglob('*.log')))


class FakeEventTimer:
    """Event timer of a device that takes 30 ms for each forward pass."""

    def __init__(self) -> None:
        self.done: list[tuple[int, dict[str, float]]] = []
        self.parts: list[str] = []

    def begin(self) -> None:
        self.parts = []

    def mark(self, part: str) -> None:
        self.parts.append(part)

    def end(self, number: int) -> None:
        self.done.append((number, {part: 0.03 for part in self.parts if part == 'forward'}))

    def take(self) -> list[tuple[int, dict[str, float]]]:
        done, self.done = self.done, []
        return done
