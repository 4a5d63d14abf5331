"""Log times and throughput with any loop, logger and interval.

Also covers `mmtempo.monitor.options`.
"""

from __future__ import annotations

import copy
import json
import math
import re
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook, LoggerHook
from mmengine.registry import HOOKS, LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner
from mmengine.visualization import Visualizer

from mmtempo.hooks import ThroughputMonitorHook
from mmtempo.logging import scalar_buffer
from mmtempo.monitor import training_monitor
from mmtempo.monitor.hook_calls import timers
from mmtempo.monitor.step_timer import StepTimer
from tests.testing.monitored import (
    SECOND,
    SLOW_HOOK,
    SLOW_SAMPLE,
    STEP,
    SlowAtTimes,
    clock,
    fake_clock,
    hook_of,
    in_epochs,
    lines_of,
    monitored,
    summary_of,
    with_our_loop,
)
from tests.testing.toy import SPARSE, STOCK, by_epoch

__all__ = ['fake_clock']


@pytest.mark.parametrize('hooks', [STOCK, SPARSE], ids=['stock hooks', 'our hooks'])
@pytest.mark.parametrize('make', [monitored, in_epochs, with_our_loop])
def test_summary_with_any_loop_and_logger(
    make: Callable[..., Config], hooks: dict, tmp_path: Path
) -> None:
    start = clock.now
    Runner.from_cfg(make(tmp_path, hooks)).train()
    summary, lines = summary_of(tmp_path), lines_of(tmp_path)
    assert summary['status'] == 'completed'
    assert (summary['iterations'], summary['last_iter']) == (300, 300)
    assert math.isclose(summary['seconds'], (clock.now - start) / SECOND, rel_tol=1e-3)
    windows = [line for line in lines if line['kind'] == 'window']
    # The iteration that writes a line has not ended yet, so it is in the next window.
    assert [line['iter'] for line in windows] == [*range(9, 300, 10), 300]
    assert sum(line['iterations'] for line in windows) == 300
    causes = summary['lost']['by_cause']
    assert causes['evaluation']['count'] == 2
    hook = 'SlowNowAndThen' if make is with_our_loop else 'hooks'
    assert ('hooks' in summary['phases']) == (hook == 'hooks')
    assert causes[hook]['count'] == 1
    assert math.isclose(causes[hook]['seconds'], SLOW_HOOK, rel_tol=0.1)
    assert [lines[0]['kind'], lines[-1]['kind']] == ['run', 'end']


def test_hooks_have_their_names_in_evaluations_on_a_subset(tmp_path: Path) -> None:
    cfg = with_our_loop(tmp_path, SPARSE, iterations=40)
    cfg.train_cfg.val_interval = 20
    cfg.val_cfg.subset = 10
    cfg.custom_hooks.append(dict(type='SlowAfterEvaluation'))
    Runner.from_cfg(cfg).train()
    phases = summary_of(tmp_path)['phases']
    assert phases['hook:SlowAfterEvaluation']['seconds'] == pytest.approx(2 * SLOW_HOOK)
    assert 'hooks' not in phases


@HOOKS.register_module()
class SlowAfterEvaluation(Hook):
    def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
        clock.go(SLOW_HOOK)


def test_logs_the_keys_of_stock_and_tempo_keys(tmp_path: Path) -> None:
    keys = {}
    for name in ('stock', 'ours'):
        cfg = with_our_loop(tmp_path / name, STOCK, iterations=20)
        if name == 'stock':
            cfg.default_hooks.timer = dict(type='IterTimerHook')
        Runner.from_cfg(cfg).train()
        (path,) = (tmp_path / name).rglob('scalars.json')
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        keys[name] = {key for row in rows if 'seen' not in row for key in row}
    assert keys['stock'] < keys['ours']
    added = keys['ours'] - keys['stock']
    assert {
        'tempo/it_per_s', 'tempo/it_per_s_steady', 'tempo/samples_per_s', 'tempo/p95', 'tempo/cv',
        'tempo/lost', 'tempo/data', 'tempo/forward', 'tempo/backward', 'tempo/Works',
    } <= added  # fmt: skip
    assert all(key.startswith('tempo/') for key in added)


def test_data_time_is_the_wait_for_the_batch(tmp_path: Path) -> None:
    """That of `IterTimerHook` includes evaluations and the hooks after the timer."""
    cfg = monitored(tmp_path, STOCK, iterations=200)
    cfg.train_cfg.val_interval = 10
    cfg.default_hooks.logger.interval = 1
    Runner.from_cfg(cfg).train()
    (path,) = tmp_path.rglob('scalars.json')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    waited = [row['data_time'] for row in rows if 'data_time' in row and 'iter' in row]
    spent = summary_of(tmp_path)['phases']['data']
    assert max(waited) < 2 * SLOW_SAMPLE + 0.1
    # Each value is the mean over a window of ten, by mmengine's log processor.
    assert math.isclose(sum(waited[9::10]) * 10, spent['seconds'], rel_tol=0.01)


@HOOKS.register_module()
class ReadsTimes(Hook):
    """Read the histories during a training, and copy one as for a checkpoint."""

    priority = 'LOWEST'
    found: dict[int, Any] = {}

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        scalars = runner.message_hub.log_scalars
        if runner.iter + 1 == 17:
            self.found[17] = copy.deepcopy(scalars['train/time']).data[0]
        elif runner.iter + 1 == 34:
            self.found[34] = scalars['train/time'].data[0], scalars['train/data_time'].data[0]
        elif runner.iter + 1 == 38:
            del scalars['train/time']
        elif runner.iter + 1 == 45 and 'train/time' in scalars:
            self.found[45] = scalars['train/time'].data[0]


@pytest.mark.parametrize('rows', [512, 4])
@pytest.mark.parametrize('interval', [10, 1000])
def test_histories_hold_the_times_of_each_iteration(
    interval: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are computed when they are read, also without a logger and with many rows."""
    monkeypatch.setattr(time, 'perf_counter', lambda: clock() / SECOND)
    monkeypatch.setattr(scalar_buffer, 'MOST_ROWS', rows)
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    ReadsTimes.found.clear()
    cfg = monitored(tmp_path, SPARSE, iterations=50)
    cfg.train_cfg.val_interval = 12
    cfg.default_hooks.logger.interval = interval
    cfg.custom_hooks.append(dict(type='ReadsTimes'))
    Runner.from_cfg(cfg).train()
    assert len(ReadsTimes.found[17]) == 17
    took, waited = ReadsTimes.found[34]
    assert len(took) == len(waited) == 34
    assert took[:17].tolist() == ReadsTimes.found[17].tolist()
    # Hooks and the wait for data included, evaluations left out.
    assert took[1:].tolist() == pytest.approx([STEP + 0.004] * 33, rel=0.2)
    assert waited[1:].tolist() == pytest.approx([0.002] * 33)
    if interval == 10:
        assert len(ReadsTimes.found[45]) == 9  # from the evaluation on


@LOOPS.register_module()
class WithoutTheHooksBefore(IterBasedTrainLoop):
    def run_iter(self, data_batch: dict) -> None:
        runner = self.runner
        outputs = runner.model.train_step(data_batch, optim_wrapper=runner.optim_wrapper)
        runner.call_hook(
            'after_train_iter', batch_idx=self._iter, data_batch=data_batch, outputs=outputs
        )
        self._iter += 1


def test_loop_without_before_train_iter_trains(tmp_path: Path) -> None:
    """Its iterations are not measured, and nothing accumulates for them."""
    cfg = monitored(tmp_path, SPARSE, iterations=60)
    cfg.train_cfg.update(type='WithoutTheHooksBefore', val_interval=1000)
    cfg.custom_hooks.append(dict(type='CountsMarks'))
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert max(hook_of(runner, CountsMarks).found) < 50
    assert summary_of(tmp_path)['iterations'] == 0


@HOOKS.register_module()
class CountsMarks(Hook):
    priority = 'LOWEST'

    def __init__(self) -> None:
        self.found: list[int] = []

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        monitor = hook_of(runner, ThroughputMonitorHook)._monitor
        self.found.append(len(monitor.timeline.log))


@pytest.mark.parametrize(('interval', 'unseen'), [(7, 600), (None, 16), (30, 16)])
def test_pending_times_are_bounded_without_log_lines(
    interval: int | None, unseen: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_monitor, 'MOST_UNSEEN', unseen)
    cfg = monitored(tmp_path, SPARSE, iterations=60, interval=interval)
    cfg.train_cfg.val_interval = 1000
    cfg.default_hooks.logger.interval = 1000
    runner = Runner.from_cfg(cfg)
    hook = hook_of(runner, ThroughputMonitorHook)
    most, since = [], ThroughputMonitorHook._since

    def note(self: Any) -> dict:
        most.append(len(self._moments))
        return since(self)

    hook._since = types.MethodType(note, hook)
    runner.train()
    assert 0 < max(most) <= 2 * min(interval or 1000, unseen + 1)


@HOOKS.register_module()
class LogsMoreOften(Hook):
    priority = 'LOWEST'

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        hook_of(runner, LoggerHook).interval = 7 if runner.iter < 8 else 3


@pytest.mark.parametrize('interval', [7, 50])
@pytest.mark.parametrize(
    'change',
    [
        dict(type='ProgressiveTrainingHook', stages=[dict(begin=9, batch_size=4)]),
        dict(type='LogsMoreOften'),
    ],
    ids=lambda one: one['type'],
)
@pytest.mark.parametrize('make', [in_epochs, with_our_loop])
def test_each_line_has_its_window_if_epoch_or_interval_changes(
    make: Callable[..., Config], change: dict, interval: int, tmp_path: Path
) -> None:
    cfg = make(tmp_path, SPARSE, iterations=60)
    cfg.train_cfg.type = cfg.train_cfg.type.replace('EpochB', 'PrefetchEpochB', 1)
    cfg.default_hooks.logger.update(interval=interval, ignore_last=False)
    cfg.custom_hooks.append(change)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    (path,) = tmp_path.rglob('scalars.json')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(rows) > 1
    assert all('tempo/it_per_s' in row for row in rows if 'loss' in row)


@pytest.mark.parametrize(
    ('intervals', 'ignore_last', 'lines'),
    [
        ([15], False, [15, 20]),
        ([15], True, [15]),
        ([50], False, [20]),  # stock writes a line at the end of each epoch
        ([50], True, [20]),
        ([15, 6], True, [6, 12, 15, 18]),
    ],
)
def test_window_ends_where_a_line_is_written(
    intervals: list[int], ignore_last: bool, lines: list[int], tmp_path: Path
) -> None:
    """Also at the end of an epoch, here of twenty iterations."""
    cfg = by_epoch(monitored(tmp_path, SPARSE), 3)
    logger, *others = [
        dict(cfg.default_hooks.logger, interval=interval, ignore_last=ignore_last)
        for interval in intervals
    ]
    cfg.default_hooks.logger = logger
    cfg.custom_hooks += others
    Runner.from_cfg(cfg).train()
    found = [line['iter'] for line in lines_of(tmp_path) if line['kind'] == 'window']
    # The iteration of the line has not ended yet.
    assert found == [epoch + line - 1 for epoch in (0, 20, 40) for line in lines] + [60]


def test_times_iterations_if_the_monitor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError('of a wrapper of mine')

    monkeypatch.setattr(StepTimer, 'install', fail)
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE))
    runner.train()
    assert runner not in timers
    text = next(tmp_path.rglob('*.log')).read_text()
    assert 'cannot monitor this training (ZeroDivisionError: of a wrapper of mine)' in text
    assert ' data_time: ' in text


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(interval=0), 'timer.interval must be an integer of at least 1, or None, found 0'),
        (dict(stall_factor=-1), 'timer.stall_factor must be a number above 0, found -1'),
        (dict(watch_interval='1'), "timer.watch_interval must be .*, found '1'"),
        (dict(stage_profile=dict(module='x')), 'timer.stage_profile must be'),
        (dict(stage_profile=['backbone']), 'timer.stage_profile must be'),
    ],
)
def test_wrong_options_are_errors_that_name_the_key(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThroughputMonitorHook(**options)


@pytest.mark.parametrize(
    ('key', 'values', 'expected'),
    [
        (
            'modules',
            ('backbone', [], [3], ['net', None], None, 3, dict(net=1)),
            r"'auto' or a list of names of the model's modules",
        ),
        ('begin', (-1, 2.5, 'x', None, True), 'an integer of at least 0'),
        ('iterations', (0, -3, 2.5, '10', None, True), 'an integer of at least 1'),
    ],
)
def test_wrong_stage_profiles_are_errors_that_name_the_key(
    key: str, values: tuple, expected: str
) -> None:
    for value in values:
        found = re.escape(repr(value))
        says = rf'default_hooks\.timer\.stage_profile\.{key} must be {expected}, found {found}$'
        with pytest.raises(ValueError, match=says):
            ThroughputMonitorHook(stage_profile={key: value})


@pytest.mark.parametrize(
    'profile',
    [{}, dict(modules='auto'), dict(modules=('net',)), dict(begin=0), dict(iterations=1)],
)
def test_stage_profiles_that_are_accepted(profile: dict) -> None:
    assert ThroughputMonitorHook(stage_profile=profile).options.stage_profile == profile


def test_wrong_stage_profile_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    cfg = monitored(tmp_path, SPARSE, stage_profile=dict(modules='backbone'))
    with pytest.raises(ValueError, match=r'timer\.stage_profile\.modules'):
        Runner.from_cfg(cfg)


def test_one_visualizer_call_per_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[set] = []
    add = Visualizer.add_scalars

    def count(self: Any, scalars: dict, *args: Any, **kwargs: Any) -> None:
        calls.append(set(scalars))
        add(self, scalars, *args, **kwargs)

    monkeypatch.setattr(Visualizer, 'add_scalars', count)
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=40))
    runner.train()
    training = [keys for keys in calls if 'loss' in keys or 'tempo/cv' in keys]
    assert len(training) == 4
    assert all({'loss', 'tempo/cv'} <= keys for keys in training)
    assert not [key for key in runner.message_hub.runtime_info if 'along' in key]
    # A checkpoint with that key would make mmengine report a missing key on resume.
    assert not [key for key in runner.message_hub.state_dict()['resumed_keys'] if 'along' in key]
