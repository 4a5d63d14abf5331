"""Attribute the time of a training to phases, and each stall to its cause.

Also covers `mmtempo.monitor.training_monitor`.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.registry import HOOKS, LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner
from mmengine.visualization import Visualizer

from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.loaders.prefetch_dataloader import PrefetchDataLoader
from mmtempo.loaders.shared_slabs import Packed
from mmtempo.monitor import training_monitor
from mmtempo.monitor.run_recorder import RunRecorder
from mmtempo.monitor.training_monitor import TrainingMonitor
from tests.testing.monitored import (
    EVALUATION,
    FAULTS,
    GC,
    SAVE,
    SECOND,
    SLOW_HOOK,
    SLOW_SAMPLE,
    FakeEventTimer,
    SlowAtTimes,
    Works,
    clock,
    collect,
    fake_clock,
    fault,
    lines_of,
    monitored,
    slow_disk,
    summary_of,
    with_our_loop,
)
from tests.testing.toy import SPARSE, STOCK, ToyModel

__all__ = ['fake_clock', 'slow_disk']


@pytest.mark.usefixtures('slow_disk')
@pytest.mark.parametrize(
    ('make', 'hook'), [(with_our_loop, 'SlowNowAndThen'), (monitored, 'hooks')]
)
def test_each_stall_has_its_cause_and_seconds(
    make: Callable[..., Config], hook: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Works, 'at', {100: collect, 120: fault})
    taken: list[int] = []  # samples, two for each iteration
    get = SlowAtTimes.__getitem__

    def note(self: Any, index: int) -> dict:
        taken.append(index)
        return get(self, index)

    monkeypatch.setattr(SlowAtTimes, '__getitem__', note)
    cfg = make(tmp_path, SPARSE)
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', interval=80)
    start = clock.now
    gc.disable()
    try:
        Runner.from_cfg(cfg).train()
    finally:
        gc.enable()
    summary = summary_of(tmp_path)
    found = {stall['iter']: stall for stall in summary['stalls']}
    late = {
        1 + number // 2 for number, index in enumerate(taken[:600]) if index in SlowAtTimes.slow
    }
    wanted: dict[int, tuple[str, str, float]] = {
        100: ('gc', 'garbage collection', GC),
        120: ('host', 'page faults', FAULTS),
        140: ('hook', hook, SLOW_HOOK),
        160: ('checkpoint', 'checkpoint: wait for the writer', SAVE),
        200: ('evaluation', 'evaluation', EVALUATION),
        240: ('checkpoint', 'checkpoint: wait for the writer', SAVE),
        300: ('evaluation', 'evaluation', EVALUATION + 2 * SAVE),  # its own save, and the last
    }
    assert late.isdisjoint(wanted)
    assert len(late) > 10
    wanted.update(dict.fromkeys(late, ('data', 'waiting for data', SLOW_SAMPLE)))
    assert set(found) == set(wanted)
    for number, (category, cause, seconds) in wanted.items():
        stall = found[number]
        assert (stall['category'], stall['cause']) == (category, cause)
        assert math.isclose(stall['lost'], seconds, rel_tol=0.1)
    total = sum(seconds for *_, seconds in wanted.values())
    assert math.isclose(summary['lost']['seconds'], total, rel_tol=0.1)
    # All time is attributed, and none twice.
    assert math.isclose(summary['seconds'], (clock.now - start) / SECOND, rel_tol=1e-3)
    shares = [phase['share'] for phase in summary['phases'].values()]
    assert math.isclose(sum(shares), 1, rel_tol=1e-6)
    assert summary['phases']['unexplained']['share'] < 0.01


def test_blocking_part_of_a_save_is_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = DurableWriter.save

    def save_slowly(*args: Any) -> Any:
        clock.go(SAVE)
        return save(*args)

    monkeypatch.setattr(DurableWriter, 'save', save_slowly)
    cfg = monitored(tmp_path, SPARSE, iterations=100)
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', interval=80, save_last=False)
    Runner.from_cfg(cfg).train()
    (stall,) = (one for one in summary_of(tmp_path)['stalls'] if one['iter'] == 80)
    assert (stall['category'], stall['cause']) == ('checkpoint', 'checkpoint: staging')
    assert math.isclose(stall['lost'], SAVE, rel_tol=0.1)


@HOOKS.register_module()
class EvaluatesFirst(Hook):
    priority = 'LOWEST'

    def before_train(self, runner: Any) -> None:
        runner.val_loop.run()


def test_evaluation_before_the_first_iteration_is_attributed(tmp_path: Path) -> None:
    start = clock.now
    cfg = monitored(tmp_path, SPARSE, iterations=20)
    cfg.train_cfg.val_interval = 1000
    cfg.custom_hooks.append(dict(type='EvaluatesFirst'))
    Runner.from_cfg(cfg).train()
    summary = summary_of(tmp_path)
    assert summary['phases']['evaluation']['seconds'] > EVALUATION
    assert math.isclose(summary['seconds'], (clock.now - start) / SECOND, rel_tol=1e-3)


@LOOPS.register_module()
class GrowsTwice(IterBasedTrainLoop):
    def run_iter(self, data_batch: dict) -> None:
        if self.iter + 1 in (60, 80):
            data_batch = dict(inputs=[*data_batch['inputs'], data_batch['inputs'][0]])
        super().run_iter(data_batch)


def test_new_input_shape_is_a_cause_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    slow = {number: lambda: clock.go(0.8) for number in (3, 60, 80)}
    monkeypatch.setattr(Works, 'at', slow)
    cfg = monitored(tmp_path, SPARSE, iterations=100)
    cfg.train_cfg.type = 'GrowsTwice'
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    found = {stall['iter']: stall['cause'] for stall in summary_of(tmp_path)['stalls']}
    assert found == {3: 'first iterations', 60: 'new input shape', 80: 'forward'}


@HOOKS.register_module()
class SlowForAWhile(Hook):
    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if 100 <= runner.iter < 140:
            clock.go(0.3)


def test_slow_span_is_one_entry_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    cfg = with_our_loop(tmp_path, SPARSE, iterations=190)
    cfg.custom_hooks.append(dict(type='SlowForAWhile'))
    Runner.from_cfg(cfg).train()
    (span,) = (one for one in summary_of(tmp_path)['stalls'] if 'iterations' in one)
    assert (span['iter'], span['until'], span['cause']) == (101, 140, 'SlowForAWhile')
    assert math.isclose(span['lost'], 40 * 0.3, rel_tol=0.1)
    changes = [line for line in lines_of(tmp_path) if line['kind'] == 'change']
    assert [line['iter'] for line in changes] == [101, 141]
    (path,) = tmp_path.rglob('*.log')
    assert path.read_text().count('from here on: SlowForAWhile') == 1


def test_slow_visualizer_is_not_attributed_to_the_monitor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Visualizer.add_scalars

    def add_slowly(*args: Any, **kwargs: Any) -> None:
        clock.go(0.2)
        add(*args, **kwargs)

    monkeypatch.setattr(Visualizer, 'add_scalars', add_slowly)
    Runner.from_cfg(with_our_loop(tmp_path, STOCK, iterations=100)).train()
    phases = summary_of(tmp_path)['phases']
    assert phases['logging: visualizer']['seconds'] == pytest.approx(0.2 * 10, rel=0.01)
    assert phases['hook:ThroughputMonitorHook']['seconds'] == 0
    # Ten lines of the training and one of the evaluation.
    assert phases['hook:LoggerHook']['seconds'] == pytest.approx(0.2 * 11, rel=0.01)


def test_slow_end_of_a_loader_is_no_late_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    close = PrefetchDataLoader.close

    def close_slowly(self: Any) -> None:
        clock.go(0.5)
        close(self)

    monkeypatch.setattr(PrefetchDataLoader, 'close', close_slowly)
    cfg = with_our_loop(tmp_path, SPARSE, iterations=100)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    stall = next(one for one in summary_of(tmp_path)['stalls'] if one['iter'] == 100)
    assert (stall['category'], stall['cause']) == ('data', 'loader: end')


class SlowToFree(dict):
    """Outputs of a step, as with a large autograd graph."""

    def __del__(self) -> None:
        clock.go(0.05)


def test_release_and_unpacking_are_no_wait_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, read = ToyModel.train_step, Packed.read

    def read_slowly(self: Packed) -> Any:
        clock.go(0.03)
        return read(self)

    monkeypatch.setattr(Packed, 'read', read_slowly)
    monkeypatch.setattr(
        ToyModel, 'train_step', lambda *args, **more: SlowToFree(step(*args, **more))
    )
    cfg = with_our_loop(tmp_path, SPARSE, iterations=40)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.train_dataloader.num_workers = 1
    Runner.from_cfg(cfg).train()
    summary = summary_of(tmp_path)
    phases = summary['phases']
    assert phases['release']['seconds'] == pytest.approx(40 * 0.05, abs=1e-6)
    assert phases['loader: unpack']['seconds'] == pytest.approx(40 * 0.03, rel=0.06)
    assert phases['data']['seconds'] == pytest.approx(0, abs=1e-6)
    waits = summary['loader']
    assert (waits['batches'] >= 40, waits['starts'], waits['samples']) == (
        True,
        1,
        2 * waits['batches'],
    )
    assert waits['cpu'] > 0
    assert waits['made'] > 0


def test_counters_are_read_in_each_iteration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    counted, count = [], TrainingMonitor._count

    def count_too(self: Any, *args: Any) -> None:
        counted.append(self.timeline.number)
        count(self, *args)

    monkeypatch.setattr(TrainingMonitor, '_count', count_too)
    cfg = monitored(tmp_path, SPARSE, iterations=40)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    assert counted == [*range(1, 41), 40], 'and at the end of the epoch'


def test_device_time_is_reported_apart_from_host_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_monitor.EventTimer, 'of', lambda device: FakeEventTimer())
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=95)).train()
    summary = summary_of(tmp_path)
    assert summary['device'] == dict(
        forward=dict(seconds=pytest.approx(95 * 0.03), p50=pytest.approx(0.03), count=95)
    )


def test_time_of_the_monitor_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window = RunRecorder.window

    def slow_window(self: Any) -> Any:
        clock.go(0.5)
        return window(self)

    monkeypatch.setattr(RunRecorder, 'window', slow_window)
    runner = Runner.from_cfg(with_our_loop(tmp_path, SPARSE, iterations=40))
    runner.train()
    phases = summary_of(tmp_path)['phases']
    assert phases['hook:ThroughputMonitorHook']['seconds'] == pytest.approx(2)
    others = [name for name in phases if name.startswith('hook:') and 'Works' not in name]
    assert sum(phases[name]['seconds'] for name in others) == pytest.approx(2)


@HOOKS.register_module()
class RegistersLater(Hook):
    """Register another hook, as some hooks of users do."""

    def before_train(self, runner: Any) -> None:
        runner.register_hook(SlowAlways())


class SlowAlways(Hook):
    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        clock.go(0.01)


def test_time_of_a_hook_that_is_registered_later_has_its_name(tmp_path: Path) -> None:
    cfg = with_our_loop(tmp_path, SPARSE, iterations=40)
    cfg.custom_hooks.append(dict(type='RegistersLater', priority='VERY_HIGH'))
    runner = Runner.from_cfg(cfg)
    runner.train()
    names = [type(hook).__name__ for hook in runner.hooks]
    assert names.index('SlowAlways') < names.index('SparseLoggerHook')
    phase = summary_of(tmp_path)['phases']['hook:SlowAlways']
    assert math.isclose(phase['seconds'], 0.4, rel_tol=0.05)
