"""Record how a training ends: complete, interrupted, failed, or resumed."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmtempo.cli.run import run_tool
from mmtempo.loaders import LoaderError
from mmtempo.logging.nonfinite import NonFiniteError
from mmtempo.monitor import training_monitor
from mmtempo.monitor.hook_calls import timers
from mmtempo.report import read_log
from mmtempo.timing.stall_detector import StallDetector
from mmtempo.utils.phases import charged_to
from tests.testing.monitored import (
    FakeEventTimer,
    SlowAtTimes,
    Works,
    clock,
    fake_clock,
    lines_of,
    monitored,
    summary_of,
)
from tests.testing.toy import SPARSE

__all__ = ['fake_clock']


@HOOKS.register_module()
class Fails(Hook):
    def __init__(self, at: int, within_step: bool) -> None:
        self.at, self.within_step = at, within_step

    def before_train(self, runner: Any) -> None:
        def step(*_: Any) -> None:
            clock.go(0.001)
            if self.within_step:
                self.after_train_iter(runner)

        runner.optim_wrapper.optimizer.register_step_pre_hook(step)

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == self.at:
            raise ZeroDivisionError


@pytest.mark.parametrize('accumulation', [1, 2])
@pytest.mark.parametrize('within_step', [True, False])
def test_failing_iteration_is_compared_with_its_kind(
    within_step: bool, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the stall before a crash is found, also with accumulation."""
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    monkeypatch.setattr(Works, 'at', {44: lambda: clock.go(0.8)})
    found, look = [], StallDetector.look

    def note(self: Any, seconds: Any, kinds: Any) -> Any:
        found.extend(kinds)
        return look(self, seconds, kinds)

    monkeypatch.setattr(StallDetector, 'look', note)
    cfg = monitored(tmp_path, SPARSE, iterations=60)
    cfg.optim_wrapper.accumulative_counts = accumulation
    cfg.custom_hooks.append(dict(type='Fails', at=44, within_step=within_step))
    with pytest.raises(ZeroDivisionError):
        run_tool('train.py', lambda: cfg, lambda cfg: Runner.from_cfg(cfg).train())
    assert found == [number % accumulation == 0 for number in range(1, 45)]
    assert 44 in {stall['iter'] for stall in summary_of(tmp_path)['stalls']}


@pytest.mark.parametrize(
    ('error', 'code', 'status', 'text'),
    [
        (KeyboardInterrupt(), 130, 'interrupted', None),
        (SystemExit(143), 143, 'interrupted', None),
        (LoaderError('no batch'), 1, 'crashed', 'LoaderError: no batch'),
        (NonFiniteError('loss is nan'), 1, 'crashed', 'NonFiniteError: loss is nan'),
        (ZeroDivisionError('of mine'), None, 'crashed', 'ZeroDivisionError: of mine'),
    ],
)
def test_summary_has_status_and_error_of_a_failed_run(
    error: BaseException,
    code: int | None,
    status: str,
    text: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(Works, 'at', {33: fail})
    cfg = monitored(tmp_path, SPARSE)

    def run(cfg: Config) -> None:
        Runner.from_cfg(cfg).train()

    if code is None:
        with pytest.raises(type(error)):
            run_tool('train.py', lambda: cfg, run)
    else:
        assert run_tool('train.py', lambda: cfg, run) == code
    summary, last = summary_of(tmp_path), lines_of(tmp_path)[-1]
    assert (summary['status'], summary['error']) == (status, text)
    assert (summary['first_iter'], summary['last_iter']) == (0, 33)
    assert (last['kind'], last['status'], last['error']) == ('end', status, text)
    assert read_log(tmp_path).summary['status'] == status


@pytest.mark.parametrize('saver', ['CheckpointHook', 'AsyncCheckpointHook'])
def test_collected_runner_ends_the_summary(
    saver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No hook runs after a failure, so the summary ends when the runner is collected."""

    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Works, 'at', {33: fail})
    cfg = monitored(tmp_path, SPARSE)
    cfg.default_hooks.checkpoint.type = saver
    runner = Runner.from_cfg(cfg)
    with pytest.raises(ZeroDivisionError):
        runner.train()
    assert not list(tmp_path.glob('*.tmp'))
    gone = weakref.ref(runner)
    del runner
    sys.last_value = None  # type: ignore[assignment]
    gc.collect()
    assert gone() is None, 'the monitor keeps the runner alive'
    assert summary_of(tmp_path)['status'] == 'interrupted'


def test_failed_training_can_be_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Works, 'at', {33: fail})
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=60))
    with pytest.raises(ZeroDivisionError):
        runner.train()
    monkeypatch.setattr(Works, 'at', {})
    runner.train()
    assert [line['kind'] for line in lines_of(tmp_path)].count('run') == 2
    summary = summary_of(tmp_path)
    assert (summary['status'], summary['last_iter']) == ('completed', 60)
    assert runner not in timers


def test_resumed_training_continues_the_log(tmp_path: Path) -> None:
    cfg = monitored(tmp_path, SPARSE, iterations=60)
    cfg.default_hooks.checkpoint.interval = 30
    Runner.from_cfg(cfg).train()
    cfg = monitored(tmp_path, SPARSE, iterations=90)
    cfg.resume = True
    Runner.from_cfg(cfg).train()
    summary = summary_of(tmp_path)
    assert (summary['first_iter'], summary['last_iter'], summary['iterations']) == (60, 90, 30)
    log = read_log(tmp_path)
    assert [run['iter'] for run in log.runs] == [0, 60]
    ends = [*range(9, 60, 10), 60, *range(69, 90, 10), 90]
    assert [line['iter'] for line in log.windows] == ends


def test_unwritable_files_do_not_stop_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / 'tempo.jsonl').mkdir()
    (tmp_path / 'tempo_summary.json').mkdir()
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=60))
    runner.train()
    assert runner.iter == 60


class BrokenEventTimer(FakeEventTimer):
    """Event timer of a device that has failed: each read raises its error."""

    def take(self) -> list[tuple[int, dict[str, float]]]:
        raise RuntimeError('CUDA error: device-side assert')


def test_failed_device_does_not_hide_the_error_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_monitor.EventTimer, 'of', lambda device: BrokenEventTimer())

    def fail() -> None:
        raise ZeroDivisionError('of mine')

    monkeypatch.setattr(Works, 'at', {5: fail})
    cfg = monitored(tmp_path, SPARSE)
    with pytest.raises(ZeroDivisionError):
        run_tool('train.py', lambda: cfg, lambda cfg: Runner.from_cfg(cfg).train())
    assert summary_of(tmp_path)['error'] == 'ZeroDivisionError: of mine'


def test_evaluation_after_a_failure_keeps_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Works, 'at', {33: fail})
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE))
    with pytest.raises(ZeroDivisionError):
        runner.train()
    runner.val()
    assert summary_of(tmp_path)['status'] != 'completed'
    assert runner not in timers


def test_training_in_a_hook_leaves_the_outer_one_monitored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_another() -> None:
        Works.at = {}
        Runner.from_cfg(monitored(tmp_path / 'inner', SPARSE)).train()
        with charged_to('mine'):
            pass

    monkeypatch.setattr(Works, 'at', {5: train_another})
    Runner.from_cfg(monitored(tmp_path / 'outer', SPARSE)).train()
    outer, inner = summary_of(tmp_path / 'outer'), summary_of(tmp_path / 'inner')
    assert outer['iterations'] == inner['iterations']
    assert outer['status'] == inner['status'] == 'completed'
    assert 'mine' in outer['phases']
    assert 'mine' not in inner['phases']
