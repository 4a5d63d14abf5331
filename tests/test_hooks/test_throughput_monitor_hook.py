"""A training with causes put into it: each one is listed, with its seconds, and nothing else."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import math
import random
import re
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook, LoggerHook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, LOOPS
from mmengine.runner import IterBasedTrainLoop, Runner
from mmengine.visualization import Visualizer

from mmtempo.checkpoint.io.writer import DurableWriter
from mmtempo.cli.run import run_tool
from mmtempo.hooks import ThroughputMonitorHook
from mmtempo.loaders import LoaderError
from mmtempo.loaders.prefetch_dataloader import PrefetchDataLoader
from mmtempo.logging import scalar_buffer
from mmtempo.logging.nonfinite import NonFiniteError
from mmtempo.monitor import profile_window, training_monitor
from mmtempo.monitor.forward_profile import REST
from mmtempo.monitor.run_recorder import RunRecorder
from mmtempo.monitor.step_timer import StepTimer
from mmtempo.monitor.training_monitor import TrainingMonitor
from mmtempo.report import read_log
from mmtempo.system.process_counters import IterationCounters
from mmtempo.timing.stall_detector import StallDetector
from tests.testing.toy import SPARSE, STOCK, ToyDataset, ToyModel, by_epoch, config, with_evaluation

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
    """The writer takes its time: who needs it again has to wait, once for each save."""
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


def hook_of(runner: Runner, cls: type) -> Any:
    return next(hook for hook in runner.hooks if isinstance(hook, cls))


def summary_of(work: Path) -> dict:
    return json.loads((work / 'tempo_summary.json').read_text())


def lines_of(work: Path) -> list[dict]:
    return [json.loads(line) for line in (work / 'tempo.jsonl').read_text().splitlines()]


@pytest.mark.usefixtures('slow_disk')
def test_each_cause_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Works, 'at', {100: collect, 120: fault})
    cfg = monitored(tmp_path, SPARSE)
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', interval=80)
    start = clock.now
    gc.disable()
    try:
        Runner.from_cfg(cfg).train()
    finally:
        gc.enable()
    summary = summary_of(tmp_path)
    found = {stall['iter']: stall for stall in summary['stalls']}
    batches = Runner.build_dataloader(cfg.train_dataloader, seed=3).batch_sampler
    late = {number for number, batch in enumerate(itertools.islice(batches, 300), 1) if 7 in batch}
    wanted: dict[int, tuple[str, str, float]] = {
        100: ('gc', 'garbage collection', GC),
        120: ('memory', 'page faults', FAULTS),
        140: ('hook', 'SlowNowAndThen', SLOW_HOOK),
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
    # Nothing is left out, and nothing is told twice.
    assert math.isclose(summary['seconds'], (clock.now - start) / SECOND, rel_tol=1e-3)
    shares = [phase['share'] for phase in summary['phases'].values()]
    assert math.isclose(sum(shares), 1, rel_tol=1e-6)
    assert summary['phases']['unexplained']['share'] < 0.01


def test_what_a_save_takes_at_once_is_staging(
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


def in_epochs(work: Path, hooks: dict, **options: Any) -> Config:
    cfg = by_epoch(monitored(work, hooks, **options), 15)
    cfg.train_cfg.val_interval = 10
    return cfg


def with_our_loop(work: Path, hooks: dict, **options: Any) -> Config:
    cfg = monitored(work, hooks, **options)
    cfg.train_cfg.type = 'PrefetchIterBasedTrainLoop'
    cfg.val_cfg.type = 'PrefetchValLoop'
    return cfg


@pytest.mark.parametrize('hooks', [STOCK, SPARSE], ids=['stock hooks', 'our hooks'])
@pytest.mark.parametrize('make', [monitored, in_epochs, with_our_loop])
def test_any_loop_and_logger(make: Callable[..., Config], hooks: dict, tmp_path: Path) -> None:
    start = clock.now
    Runner.from_cfg(make(tmp_path, hooks)).train()
    summary, lines = summary_of(tmp_path), lines_of(tmp_path)
    assert summary['status'] == 'completed'
    assert (summary['iterations'], summary['last_iter']) == (300, 300)
    assert math.isclose(summary['seconds'], (clock.now - start) / SECOND, rel_tol=1e-3)
    windows = [line for line in lines if line['kind'] == 'window']
    # The iteration that writes the line is still going on.
    assert [line['iter'] for line in windows] == [*range(9, 300, 10), 300]
    assert sum(line['iterations'] for line in windows) == 300
    causes = summary['lost']['by_cause']
    assert causes['evaluation']['count'] == 2
    assert causes['SlowNowAndThen']['count'] == 1
    assert math.isclose(causes['SlowNowAndThen']['seconds'], SLOW_HOOK, rel_tol=0.1)
    assert [lines[0]['kind'], lines[-1]['kind']] == ['run', 'end']


def test_it_logs_what_stock_logs_and_more(tmp_path: Path) -> None:
    keys = {}
    for name in ('stock', 'ours'):
        cfg = monitored(tmp_path / name, STOCK, iterations=20)
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


def test_data_time_is_what_was_waited_for_the_batch(tmp_path: Path) -> None:
    """Stock's holds what the hooks behind its timer take, and evaluations."""
    cfg = monitored(tmp_path, STOCK, iterations=200)
    cfg.train_cfg.val_interval = 10
    cfg.default_hooks.logger.interval = 1
    Runner.from_cfg(cfg).train()
    (path,) = tmp_path.rglob('scalars.json')
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    waited = [row['data_time'] for row in rows if 'data_time' in row and 'iter' in row]
    spent = summary_of(tmp_path)['phases']['data']
    assert max(waited) < 2 * SLOW_SAMPLE + 0.1
    # Of a window of ten, as mmengine's log processor has it.
    assert math.isclose(sum(waited[9::10]) * 10, spent['seconds'], rel_tol=0.01)


@HOOKS.register_module()
class ReadsTimes(Hook):
    """What a history holds in the midst of a training, and in a checkpoint."""

    priority = 'LOWEST'
    found: dict[int, Any] = {}

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        scalars = runner.message_hub.log_scalars
        if runner.iter + 1 == 17:
            self.found[17] = copy.deepcopy(scalars['train/time']).data[0]
        elif runner.iter + 1 == 34:
            self.found[34] = scalars['train/time'].data[0], scalars['train/data_time'].data[0]
        elif runner.iter + 1 == 38:
            del scalars['train/time']  # by whom ever
        elif runner.iter + 1 == 45 and 'train/time' in scalars:
            self.found[45] = scalars['train/time'].data[0]


@pytest.mark.parametrize('rows', [512, 4])
@pytest.mark.parametrize('interval', [10, 1000])
def test_whoever_reads_times_finds_those_of_each_iteration(
    interval: int, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are worked out when somebody asks; also where nobody logs, or there are many."""
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
        assert len(ReadsTimes.found[45]) == 9  # from the evaluation on, before which all was told


@pytest.mark.parametrize('accumulation', [1, 2])
@pytest.mark.parametrize('within_step', [True, False])
def test_an_iteration_that_fails_in_its_step_or_behind_is_of_its_kind(
    within_step: bool, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With accumulation as well; so the stall before a crash is found."""
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


@HOOKS.register_module()
class EvaluatesFirst(Hook):
    priority = 'LOWEST'

    def before_train(self, runner: Any) -> None:
        runner.val_loop.run()


def test_an_evaluation_before_the_first_iteration_is_in_the_ledger(tmp_path: Path) -> None:
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


def test_a_shape_is_new_once_and_the_first_iterations_warm_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    slow = {number: lambda: clock.go(0.8) for number in (3, 60, 80)}
    monkeypatch.setattr(Works, 'at', slow)
    cfg = monitored(tmp_path, SPARSE, iterations=100)
    cfg.train_cfg.type = 'GrowsTwice'
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    found = {stall['iter']: stall['cause'] for stall in summary_of(tmp_path)['stalls']}
    assert found == {3: 'first iterations', 60: 'new input shape', 80: 'to_device'}


@LOOPS.register_module()
class WithoutTheHooksBefore(IterBasedTrainLoop):
    def run_iter(self, data_batch: dict) -> None:
        runner = self.runner
        outputs = runner.model.train_step(data_batch, optim_wrapper=runner.optim_wrapper)
        runner.call_hook(
            'after_train_iter', batch_idx=self._iter, data_batch=data_batch, outputs=outputs
        )
        self._iter += 1


def test_a_loop_without_the_hooks_before_is_trained(tmp_path: Path) -> None:
    """Of its iterations nothing is known, nor kept."""
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
def test_times_do_not_become_many_where_nobody_logs(
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
class SlowForAWhile(Hook):
    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if 100 <= runner.iter < 140:
            clock.go(0.3)


def test_a_slow_spell_is_told_once_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    cfg = monitored(tmp_path, SPARSE, iterations=190)
    cfg.custom_hooks.append(dict(type='SlowForAWhile'))
    Runner.from_cfg(cfg).train()
    (spell,) = (one for one in summary_of(tmp_path)['stalls'] if 'iterations' in one)
    assert (spell['iter'], spell['until'], spell['cause']) == (101, 140, 'SlowForAWhile')
    assert math.isclose(spell['lost'], 40 * 0.3, rel_tol=0.1)
    changes = [line for line in lines_of(tmp_path) if line['kind'] == 'change']
    assert [line['iter'] for line in changes] == [101, 141]
    (path,) = tmp_path.rglob('*.log')
    assert path.read_text().count('from here on: SlowForAWhile') == 1


def test_a_slow_visualizer_is_not_the_monitors_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Visualizer.add_scalars

    def add_slowly(*args: Any, **kwargs: Any) -> None:
        clock.go(0.2)
        add(*args, **kwargs)

    monkeypatch.setattr(Visualizer, 'add_scalars', add_slowly)
    Runner.from_cfg(monitored(tmp_path, STOCK, iterations=100)).train()
    phases = summary_of(tmp_path)['phases']
    assert phases['logging: visualizer']['seconds'] == pytest.approx(0.2 * 10, rel=0.01)
    assert phases['hook:ThroughputMonitorHook']['seconds'] == 0
    # One of its own is of the evaluation.
    assert phases['hook:LoggerHook']['seconds'] == pytest.approx(0.2 * 11, rel=0.01)


def test_a_loader_that_ends_slowly_is_no_late_batch(
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
def test_each_line_has_its_window_whatever_changes(
    make: Callable[..., Config], change: dict, interval: int, tmp_path: Path
) -> None:
    """An epoch has fewer batches from then on, or lines come at another interval."""
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
        ([50], False, [20]),  # as stock's, which writes a line of each epoch
        ([50], True, [20]),
        ([15, 6], True, [6, 12, 15, 18]),
    ],
)
def test_a_window_ends_where_a_line_is_written(
    intervals: list[int], ignore_last: bool, lines: list[int], tmp_path: Path
) -> None:
    """The rest of an epoch of twenty iterations as well."""
    cfg = by_epoch(monitored(tmp_path, SPARSE), 3)
    logger, *others = [
        dict(cfg.default_hooks.logger, interval=interval, ignore_last=ignore_last)
        for interval in intervals
    ]
    cfg.default_hooks.logger = logger
    cfg.custom_hooks += others
    Runner.from_cfg(cfg).train()
    found = [line['iter'] for line in lines_of(tmp_path) if line['kind'] == 'window']
    # That of the line itself has not ended yet.
    assert found == [epoch + line - 1 for epoch in (0, 20, 40) for line in lines] + [60]


def test_what_counts_is_read_now_and_then_and_where_it_was_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlowAtTimes, 'slow', ())
    counted, count = [], TrainingMonitor._count

    def count_too(self: Any, *args: Any) -> None:
        counted.append(self.timeline.number)
        count(self, *args)

    monkeypatch.setattr(TrainingMonitor, '_count', count_too)
    monkeypatch.setattr(Works, 'at', {101: fault})
    cfg = monitored(tmp_path, SPARSE)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    # Up to the log line at which 20 iterations have ended, nobody knows what is usual.
    assert counted == [
        *range(1, 30),
        *sorted({*range(32, 301, 8), 101, 140}),
        300,
    ]


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
def test_runs_that_do_not_end_well_are_told(
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
def test_a_run_that_nobody_watches_any_more(
    saver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a tool that tells, the runner's end is what is known; also where a hook knows it."""

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
    assert gone() is None, 'the monitor keeps the runner'
    assert summary_of(tmp_path)['status'] == 'interrupted'


def test_what_cannot_be_watched_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise ZeroDivisionError('of a wrapper of mine')

    monkeypatch.setattr(StepTimer, 'install', fail)
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE))
    runner.train()
    assert 'call_hook' not in vars(runner)
    text = next(tmp_path.rglob('*.log')).read_text()
    assert 'cannot watch this training (ZeroDivisionError: of a wrapper of mine)' in text
    assert ' data_time: ' in text


def test_a_training_begun_again_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert 'call_hook' not in vars(runner)


def test_a_resumed_training_counts_on(tmp_path: Path) -> None:
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


def test_stages_are_measured_for_a_while(tmp_path: Path) -> None:
    profile = dict(modules=['net.0', 'net.1'], begin=5, iterations=10)
    cfg = monitored(tmp_path, SPARSE, iterations=40, stage_profile=profile)
    runner = Runner.from_cfg(cfg)
    runner.train()
    stages = summary_of(tmp_path)['stages']
    assert stages['iterations'] == 10
    assert {'net.0', 'net.1'} <= {stage['name'] for stage in stages['stages']}
    assert not any(module._forward_hooks for module in runner.model.modules())
    assert not any(module._forward_pre_hooks for module in runner.model.modules())


def log_of(work: Path) -> str:
    return '\n'.join(path.read_text() for path in sorted(work.rglob('*.log')))


def stage_times(stages: dict) -> dict[str, float]:
    return {stage['name']: stage['seconds'] for stage in stages['stages']}


@pytest.fixture
def timed_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the toy model, what is called within its forward pass takes ten milliseconds each."""
    call = torch.nn.Linear.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        clock.go(0.01)
        return call(self, x)

    monkeypatch.setattr(torch.nn.Linear, 'forward', forward)
    monkeypatch.setattr(profile_window.ProfileWindow, 'clock', clock)


@pytest.mark.usefixtures('timed_stages')
def test_what_no_stage_has_taken_is_told(tmp_path: Path) -> None:
    profile = dict(modules=['net.0', 'net'], begin=5, iterations=10)
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=40, stage_profile=profile)).train()
    stages = summary_of(tmp_path)['stages']
    assert (stages['iter'], stages['iterations'], stages['asked']) == (14, 10, 10)
    assert stage_times(stages) == {
        'net.0': pytest.approx(0.01),
        'net': pytest.approx(0.02),
        REST: pytest.approx(0),
    }
    assert [stage['share'] for stage in stages['stages']] == pytest.approx([0.5, 1, 0])
    assert (stages['never_called'], stages['by_children']) == ([], [])
    (line,) = (line for line in lines_of(tmp_path) if line['kind'] == 'stages')
    assert {key: line[key] for key in stages} == stages
    log = log_of(tmp_path)
    assert (
        'Forward pass by module (10 iterations up to iteration 14): net 20.0 ms (100 %), '
        f'net.0 10.0 ms (50 %), {REST} 0 s (0.0 %)'
    ) in log
    assert log.index('Forward pass by module (') < log.index('Throughput  40 iterations')


@pytest.mark.usefixtures('timed_stages')
@pytest.mark.parametrize('is_direct', [True, False])
def test_a_stage_that_was_never_called(
    is_direct: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Any, inputs: list, data_samples: Any = None, mode: str = '') -> Any:
        batch = torch.stack(inputs)
        batch = self.net.forward(batch) if is_direct else self.net[2](self.net[0](batch))
        return dict(loss=batch.square().mean())

    monkeypatch.setattr(ToyModel, 'forward', forward)
    monkeypatch.setattr(ToyModel, 'parse_losses', BaseModel.parse_losses)
    profile = dict(modules=['net', 'net.2', 'net.1'], begin=0, iterations=10)
    cfg = monitored(tmp_path, SPARSE, iterations=15, stage_profile=profile)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    Runner.from_cfg(cfg).train()
    stages = summary_of(tmp_path)['stages']
    assert stages['never_called'] == ([] if is_direct else ['net.1'])
    assert stages['by_children'] == ['net']
    assert ('; never called: net.1\n' in log_of(tmp_path)) != is_direct


@pytest.mark.parametrize('ends', ['completed', 'crashed'])
def test_a_run_that_ends_within_its_window(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ArithmeticError('no more')

    monkeypatch.setattr(Works, 'at', {27: fail} if ends == 'crashed' else {})
    profile = dict(modules=['net', 'net.0'], begin=20)
    iterations = 26 if ends == 'completed' else 60
    runner = Runner.from_cfg(
        monitored(tmp_path, SPARSE, iterations=iterations, stage_profile=profile)
    )
    if ends == 'completed':
        runner.train()
    else:
        with pytest.raises(ArithmeticError):
            runner.train()
        training_monitor.end_monitored(ArithmeticError('no more'))
    summary = summary_of(tmp_path)
    assert (summary['status'], summary['warnings']) == (ends, [])
    stages = summary['stages']
    assert (stages['iter'], stages['iterations'], stages['asked']) == (26, 7, 100)
    assert [line['iterations'] for line in lines_of(tmp_path) if line['kind'] == 'stages'] == [7]
    assert '7 iterations up to' not in log_of(tmp_path)  # the table says it


@pytest.mark.parametrize(('modules', 'never'), [('auto', []), (['data_preprocessor'],) * 2])
def test_nobody_misses_the_preprocessor_unless_it_was_named(
    modules: str | list, never: list, tmp_path: Path
) -> None:
    """It is called before the forward pass."""
    profile = dict(modules=modules, begin=2, iterations=5)
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=10, stage_profile=profile)).train()
    stages = summary_of(tmp_path)['stages']
    assert list(stage_times(stages)) == ([REST] if never else ['net', REST])
    assert stages['never_called'] == never


def test_a_window_that_was_not_reached(tmp_path: Path) -> None:
    cfg = monitored(tmp_path, SPARSE, iterations=40, stage_profile={})
    cfg.default_hooks.checkpoint.interval = 40
    Runner.from_cfg(cfg).train()
    summary = summary_of(tmp_path)
    says = (
        'stage_profile: nothing was measured, because the window begins with iteration 50 and the '
        'training ended with iteration 40; set default_hooks.timer.stage_profile.begin below 40 '
        '(it counts from iteration 0)'
    )
    assert summary['warnings'] == [says]
    assert 'stages' not in summary
    assert log_of(tmp_path).count(says) == 1
    cfg = monitored(tmp_path, SPARSE, iterations=70, stage_profile={})
    cfg.resume = True
    Runner.from_cfg(cfg).train()
    (warning,) = summary_of(tmp_path)['warnings']
    assert 'begins with iteration 90 and the training ended with iteration 70' in warning
    assert 'begin below 30 (it counts from iteration 40, where this training started)' in warning


def test_a_training_without_iterations_has_missed_nothing() -> None:
    window = profile_window.ProfileWindow.of({}, torch.nn.Linear(1, 1), torch.device('cpu'), 7)
    assert window is not None
    assert window.missed(7, 7) is None
    assert 'begins with iteration 57' in str(window.missed(7, 8))


def test_a_model_that_is_not_called_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ToyModel.forward

    def train_step(self: Any, data: dict, optim_wrapper: Any) -> dict:
        data = self.data_preprocessor(data, True)
        loss, log_vars = self.parse_losses(call(self, **data, mode='loss'))
        optim_wrapper.update_params(loss)
        return log_vars

    monkeypatch.setattr(ToyModel, 'train_step', train_step)
    profile = dict(modules=['net'], begin=10, iterations=5)
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=30, stage_profile=profile)).train()
    (warning,) = summary_of(tmp_path)['warnings']
    assert warning.startswith(
        'stage_profile: nothing was measured from iteration 10 to 30, because no iteration'
    )
    assert 'ThroughputMonitorHook: ' not in log_of(tmp_path)  # as of what could not be stopped


def test_only_the_largest_stages_are_in_the_line() -> None:
    found = dict(iter=9, iterations=1, never_called=[str(place) for place in range(7)])
    stages = [
        dict(name=f'part {share}', seconds=1.0, share=share / 100, device_seconds=2.0 * share)
        for share in (1, 9, 4, 25, 16, 36)
    ]
    rest = dict(name='rest', seconds=1.5, share=0.09, device_seconds=None)
    assert profile_window.line_of(dict(found, stages=[*stages, rest])) == (
        'Forward pass by module (1 iteration up to iteration 9): part 36 72.0 s (36 %), part 25 '
        '50.0 s (25 %), part 16 32.0 s (16 %), part 9 18.0 s (9.0 %), part 4 8.00 s (4.0 %), '
        '1 more, rest 1.50 s (9.0 %); never called: 0, 1, 2, 3, 4 and 2 more'
    )


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
def test_options_that_cannot_be(options: dict, message: str) -> None:
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
def test_stage_profiles_that_cannot_be(key: str, values: tuple, expected: str) -> None:
    for value in values:
        found = re.escape(repr(value))
        says = rf'default_hooks\.timer\.stage_profile\.{key} must be {expected}, found {found}$'
        with pytest.raises(ValueError, match=says):
            ThroughputMonitorHook(stage_profile={key: value})


@pytest.mark.parametrize(
    'profile',
    [{}, dict(modules='auto'), dict(modules=('net',)), dict(begin=0), dict(iterations=1)],
)
def test_stage_profiles_that_can_be(profile: dict) -> None:
    assert ThroughputMonitorHook(stage_profile=profile).options.stage_profile == profile


def test_a_config_mistake_stops_the_run_before_it_begins(tmp_path: Path) -> None:
    """Instead of a training without its monitor."""
    cfg = monitored(tmp_path, SPARSE, stage_profile=dict(modules='backbone'))
    with pytest.raises(ValueError, match=r'timer\.stage_profile\.modules'):
        Runner.from_cfg(cfg)


def test_modules_that_are_not_there(tmp_path: Path) -> None:
    cfg = monitored(tmp_path, SPARSE, stage_profile=dict(modules=['backbone']))
    with pytest.raises(ValueError, match=r'timer\.stage_profile\.modules.*backbone'):
        Runner.from_cfg(cfg).train()


class FakeDeviceClock:
    """As of a device that takes 30 ms for each forward pass."""

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


def test_a_device_has_a_clock_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_monitor.DeviceClock, 'of', lambda device: FakeDeviceClock())
    Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=95)).train()
    summary = summary_of(tmp_path)
    assert summary['device'] == dict(
        forward=dict(seconds=pytest.approx(95 * 0.03), p50=pytest.approx(0.03), count=95)
    )


def test_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The training is worth more than its monitor."""
    (tmp_path / 'tempo.jsonl').mkdir()
    (tmp_path / 'tempo_summary.json').mkdir()
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=60))
    runner.train()
    assert runner.iter == 60


class BrokenDeviceClock(FakeDeviceClock):
    """As of a device that has failed: whoever asks it gets that error."""

    def take(self) -> list[tuple[int, dict[str, float]]]:
        raise RuntimeError('CUDA error: device-side assert')


def test_a_device_that_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not hide what the user is to see, nor what the training has taken."""
    monkeypatch.setattr(training_monitor.DeviceClock, 'of', lambda device: BrokenDeviceClock())

    def fail() -> None:
        raise ZeroDivisionError('of mine')

    monkeypatch.setattr(Works, 'at', {5: fail})
    cfg = monitored(tmp_path, SPARSE)
    with pytest.raises(ZeroDivisionError):
        run_tool('train.py', lambda: cfg, lambda cfg: Runner.from_cfg(cfg).train())
    assert summary_of(tmp_path)['error'] == 'ZeroDivisionError: of mine'


def test_evaluation_by_hand_after_a_failure(
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
    assert 'call_hook' not in vars(runner)


def test_its_own_time_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of any other hook."""
    window = RunRecorder.window

    def slow_window(self: Any) -> Any:
        clock.go(0.5)
        return window(self)

    monkeypatch.setattr(RunRecorder, 'window', slow_window)
    runner = Runner.from_cfg(monitored(tmp_path, SPARSE, iterations=40))
    runner.train()
    phases = summary_of(tmp_path)['phases']
    assert phases['hook:ThroughputMonitorHook']['seconds'] == pytest.approx(2)
    others = [name for name in phases if name.startswith('hook:') and 'Works' not in name]
    assert sum(phases[name]['seconds'] for name in others) == pytest.approx(2)


@HOOKS.register_module()
class RegistersLater(Hook):
    """As hooks do that bring another one along."""

    def before_train(self, runner: Any) -> None:
        runner.register_hook(SlowAlways())


class SlowAlways(Hook):
    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        clock.go(0.01)


def test_hooks_that_are_registered_later(tmp_path: Path) -> None:
    """They find the place that their priority gives them, and their time has their name."""
    cfg = monitored(tmp_path, SPARSE, iterations=40)
    cfg.custom_hooks.append(dict(type='RegistersLater', priority='VERY_HIGH'))
    runner = Runner.from_cfg(cfg)
    runner.train()
    names = [type(hook).__name__ for hook in runner.hooks]
    assert names.index('SlowAlways') < names.index('SparseLoggerHook')
    phase = summary_of(tmp_path)['phases']['hook:SlowAlways']
    assert math.isclose(phase['seconds'], 0.4, rel_tol=0.05)


def test_one_call_a_step_for_visualizers_that_count_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    # Nor does a checkpoint know of it: whoever resumes would be told that something is missing.
    assert not [key for key in runner.message_hub.state_dict()['resumed_keys'] if 'along' in key]
