"""All arms train in turns, and the report checks their cost."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from mmtempo.benchmarks.monitor import measure
from mmtempo.benchmarks.monitor.measure import (
    ARMS,
    TIMERS,
    TURN,
    Arm,
    measure_monitor,
    take_set,
)

trained: list[tuple[int, str]] = []  # runner and model of each iteration


@HOOKS.register_module()
class RecordsIterations(Hook):
    """Hook that records the iterations of all arms."""

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        trained.append((id(runner), type(runner.model).__name__))


def test_arms_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = dict(type='RecordsIterations')
    monkeypatch.setattr(measure, 'ARMS', {'no timer': timer, 'ours': timer})
    monkeypatch.setattr(measure, 'WARM_UP', 2)
    rounds = take_set(3, seed=0)
    assert [len(turns[name]) for turns in rounds for name in ('no timer', 'ours')] == [TURN] * 6
    runs = [trained[start : start + TURN] for start in range(0, len(trained), TURN)]
    assert len(runs) == 2 * (2 + 3)
    assert {len(set(run)) for run in runs} == {1}  # turns do not overlap
    for first in range(0, len(runs), 2):
        assert runs[first] != runs[first + 1]


def test_set_restores_threads_and_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, 'WARM_UP', 0)
    before = torch.get_num_threads(), gc.get_freeze_count()
    take_set(1, seed=0)
    monkeypatch.setitem(measure.ARMS, 'no timer', dict(type='FailsAtOnce'))
    with pytest.raises(ZeroDivisionError):
        take_set(1, seed=0)
    assert (torch.get_num_threads(), gc.get_freeze_count()) == before


@HOOKS.register_module()
class FailsAtOnce(Hook):
    """Hook that fails in the first iteration."""

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError


def test_monitor_writes_only_for_its_arm(tmp_path: Path) -> None:
    arms = [Arm(timer, str(tmp_path / f'{os.getpid()}-{name}')) for name, timer in TIMERS.items()]
    for arm in arms * 2:
        taken = arm.run(10)
        assert len(taken) == 10
        assert min(taken) > 0
    for arm in arms:
        arm.close()
    (lines,) = tmp_path.rglob('tempo.jsonl')
    assert lines.parent.name == f'{os.getpid()}-ours'
    last = lines.read_text().splitlines()[-1]
    assert '"status":"completed"' in last
    assert '"iter":20' in last


def test_error_of_an_arm_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.ARMS, 'ours', dict(type='NoSuchHook'))
    with pytest.raises(KeyError, match='NoSuchHook'):
        measure_monitor(quick=True)


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, 'SETS', dict(quick=2))
    monkeypatch.setattr(measure, 'ROUNDS', dict(quick=2))
    monkeypatch.setattr(measure, 'WARM_UP', 1)
    monkeypatch.setattr(measure, 'SIMULATED', dict(quick=(5000, 6000)))
    others: list[Any] = []
    monkeypatch.setattr(measure, 'measure_side_effects', lambda report, *args: others.append(args))
    report = measure_monitor(quick=True)
    assert others == [(['nothing', 'monitor'], ['monitor'], True)]
    assert set(report.arms) == {*ARMS, 'waits an iteration', 'simulated'}
    counts = {what: figures['n'] for what, figures in report.arms['ours'].items()}
    assert counts == dict(median=4, cold=4, mean=2, median_cost=4, cold_cost=4, mean_cost=2)
    assert [(check.limit, check.at_least) for check in report.checks] == [
        (measure.MAX_MICROSECONDS, False),
        (measure.MAX_WAITS, False),
        (measure.MAX_GROWTH, False),
        (measure.MAX_GROWTH, False),
    ]
    assert report.checks[1].value == 0
    report.write(str(tmp_path / 'monitor.json'))
