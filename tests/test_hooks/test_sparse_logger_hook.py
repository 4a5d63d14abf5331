"""Lines are written once their values have arrived, with the state of their log point."""

from __future__ import annotations

import io
import itertools
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from mmengine.hooks import Hook, LoggerHook
from mmengine.runner import Runner
from rich.console import Console

import mmtempo.hooks.sparse_logger_hook as module
from mmtempo.hooks.sparse_logger_hook import SparseLoggerHook
from mmtempo.logging.log_points import writes_line
from mmtempo.logging.progress_bar import ProgressBar, close_bars
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.logging.scalar_rows import ScalarRows
from tests.testing.common import ROOT, fill
from tests.testing.slow_copy import SlowCopy
from tests.testing.toy import (
    SPARSE,
    STOCK,
    by_epoch,
    config,
    logged,
    text_lines,
    train,
    with_evaluation,
)


class Late(Hook):
    """Let copies arrive `delay` iterations after they were started."""

    priority = 'HIGH'

    def __init__(self, delay: int) -> None:
        self.delay = delay
        self.started: dict[int, int] = {}
        self.lines: list[tuple[int, int]] = []  # (iteration, lines written by then)

    def before_train(self, runner: Runner) -> None:
        SlowCopy.made = []
        ScalarBuffer.of(runner.message_hub)._rows = ScalarRows(SlowCopy)

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        for number, copy in enumerate(SlowCopy.made):
            started = self.started.setdefault(number, runner.iter - 1)
            copy.arrived = runner.iter >= started + self.delay

    def before_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self.lines.append((runner.iter, len(text_lines(runner.work_dir))))


def test_log_points_are_those_of_stock() -> None:
    for interval, ignore_last, length in itertools.product(
        (1, 3, 10), (True, False), (1, 3, 7, 20)
    ):
        lines: list[str] = []
        runner = SimpleNamespace(
            train_dataloader=range(length), iter=0, experiment_name='', max_iters=99,
            logger=SimpleNamespace(info=lines.append), visualizer=MagicMock(),
            log_processor=SimpleNamespace(get_log_after_iter=lambda *_: ({}, 'a line')),
        )  # fmt: skip
        hook = LoggerHook(interval=interval, ignore_last=ignore_last)
        hook.json_log_path = ''
        for batch in range(25):
            lines.clear()
            hook.after_train_iter(runner, batch)
            assert writes_line(hook, runner, batch) == ('a line' in lines)


@pytest.mark.parametrize('delay', [1, 3, 9])
def test_late_line_equals_that_of_stock(delay: int, tmp_path: Path) -> None:
    configs = []
    for name, hooks in (('stock', STOCK), ('sparse', SPARSE)):
        cfg = config(tmp_path / name, hooks, **{'train_cfg.max_iters': 55})
        cfg.default_hooks.checkpoint = None
        # A value of the host that changes between log point and line.
        cfg.param_scheduler = dict(type='LinearLR', by_epoch=False, end=55)
        configs.append(cfg)
    train(configs[0])
    cfg = configs[1]
    runner = Runner.from_cfg(cfg)
    late = Late(delay)
    runner.register_hook(late)
    runner.train()
    assert logged(tmp_path / 'sparse') == logged(tmp_path / 'stock')
    assert text_lines(tmp_path / 'sparse') == text_lines(tmp_path / 'stock')
    # The first line is due after ten iterations, and written `delay` iterations later.
    assert dict(late.lines)[9 + delay] == 0
    assert dict(late.lines)[10 + delay] == 1
    waited = [copy for copy in SlowCopy.made if copy.waited]
    # Only at the end of the training: floats and integers, and those of a pending line.
    assert len(waited) <= (4 if delay == 9 else 2)


def test_pending_line_is_written_at_the_next_log_point(tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE, **{'train_cfg.max_iters': 35})
    cfg.default_hooks.checkpoint = None
    runner = Runner.from_cfg(cfg)
    late = Late(1000)
    runner.register_hook(late)
    runner.train()
    assert [line['step'] for line in logged(tmp_path)] == [10, 20, 30]
    lines = dict(late.lines)
    assert (lines[19], lines[20], lines[29], lines[30]) == (0, 1, 1, 2)


@pytest.mark.parametrize('hooks', [
    dict(SPARSE, logger='LoggerHook'), dict(SPARSE, runtime_info='RuntimeInfoHook')
])  # fmt: skip
def test_each_hook_works_with_the_other_of_stock(hooks: dict, tmp_path: Path) -> None:
    train(config(tmp_path / 'stock', STOCK, **{'train_cfg.max_iters': 40}))
    train(config(tmp_path / 'mixed', hooks, **{'train_cfg.max_iters': 40}))
    assert logged(tmp_path / 'mixed') == logged(tmp_path / 'stock')


@pytest.mark.parametrize('by_iteration', [True, False])
def test_evaluations_are_logged_as_with_stock(by_iteration: bool, tmp_path: Path) -> None:
    found = []
    for hooks in (STOCK, SPARSE):
        cfg = with_evaluation(
            config(tmp_path / hooks['logger'], hooks, **{'train_cfg.max_iters': 60})
        )
        if by_iteration:
            cfg.train_cfg.val_interval = 25
            cfg.default_hooks.logger.log_metric_by_epoch = False
        else:
            cfg = by_epoch(cfg, 3)
        train(cfg)
        found.append(logged(tmp_path / hooks['logger']))
    assert found[0] == found[1]
    assert sum('seen' in line for line in found[0]) == 3


def test_arguments_of_stock_are_taken(tmp_path: Path) -> None:
    cfg = config(tmp_path / 'work', SPARSE, **{'train_cfg.max_iters': 12})
    cfg.default_hooks.logger.update(
        out_dir=str(tmp_path / 'out'), out_suffix='.log', interval_exp_name=5, keep_local=True
    )
    train(cfg)
    (copied,) = (tmp_path / 'out').rglob('*.log')
    assert copied.read_text().count('Exp name:') == 2
    with pytest.raises(TypeError, match='interval'):
        SparseLoggerHook(interval='10')
    with pytest.raises(TypeError, match='unheard_of'):
        SparseLoggerHook(unheard_of=1)
    with pytest.raises(ValueError, match="progress must be 'auto', 'bar' or 'off', found 'on'"):
        SparseLoggerHook(progress='on')


class Clock:
    """A clock that tests advance."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_remaining_time_includes_evaluations_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, 'time', clock)

    class Costs(Hook):
        """An iteration takes 1 s (the first ten 60 s), an evaluation 50 s, a save 5 s."""

        priority = 'VERY_HIGH'
        seen: list[float] = []

        def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
            clock.now += 60.0 if runner.iter < 11 else 1.0

        def before_val_epoch(self, runner: Runner) -> None:
            clock.now += 50.0

        def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
            clock.now += 5.0

    cfg = with_evaluation(config(tmp_path, SPARSE, **{'train_cfg.max_iters': 100}))
    cfg.train_cfg.val_interval = 30
    cfg.default_hooks.checkpoint.interval = 20
    cfg.default_hooks.timer = dict(type='IterTimerHook')
    runner = Runner.from_cfg(cfg)
    runner.register_hook(Costs())
    runner.train()
    (path,) = tmp_path.rglob('*.log')
    found = re.findall(r'\[ *(\d+)/100\].*eta: ([\d:]+)', path.read_text())
    assert dict(found)['20'] == '0:01:20'  # no evaluation or save has been measured yet
    assert dict(found)['30'] == '0:01:30'  # and saves at 40, 60, 80, 100
    # 60 iterations, evaluations at 60, 90 and 100, saves at 60, 80 and 100
    assert dict(found)['40'] == '0:03:45'


def test_bar_is_drawn_periodically_and_keeps_log_lines_whole() -> None:
    clock, screen = Clock(), io.StringIO()
    logger = logging.Logger('bar')
    handler = logging.StreamHandler(sys.stdout)
    logger.addHandler(handler)
    console = Console(file=screen, force_terminal=True, width=80)
    bar = ProgressBar(1000, logger, console, clock.perf_counter, period=0.5)
    drawn = []
    for iteration in range(1, 101):
        clock.now += 0.125
        before = screen.tell()
        bar.advance(iteration, lambda: 3725.0)
        drawn.append(screen.tell() > before)
    assert sum(drawn) == 24  # the first one starts the clock
    assert '8.00 it/s, 1:02:05 left' in screen.getvalue()
    before = screen.tell()
    long = 'a line that is longer than the terminal is wide, ' * 4
    logger.info(long)
    assert long in screen.getvalue()[before:]
    bar.stage('evaluation')
    assert 'evaluation' in screen.getvalue()
    close_bars()
    bar.close()
    assert handler.stream is sys.stdout
    assert '\x1b[?25h' in screen.getvalue()[before:]  # the cursor is back


SCRIPT = """
import sys, tests.conftest
from pathlib import Path
from tests.testing.toy import SPARSE, config, train
cfg = config(Path(sys.argv[1]), SPARSE, **{'train_cfg.max_iters': 30})
train(cfg)
"""


@pytest.mark.parametrize('is_terminal', [True, False])
def test_bar_is_shown_in_a_terminal_only(is_terminal: bool, tmp_path: Path) -> None:
    command = [sys.executable, '-W', 'ignore', '-c', SCRIPT, str(tmp_path)]
    env = dict(os.environ, TERM='xterm-256color', COLUMNS='100')
    if is_terminal:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(command, cwd=ROOT, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        output = b''
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            output += chunk
        os.close(ours)
        code = process.wait(timeout=100)
    else:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, env=env, timeout=100)
        output, code = done.stdout + done.stderr, done.returncode
    assert code == 0, output
    hides, shows = b'\x1b[?25l', b'\x1b[?25h'
    assert (hides in output) == is_terminal
    assert (shows in output) == is_terminal
    assert output.count(b'Iter(train)') == 3


class Disturbs(Hook):
    """Call functions before iterations, given as `at_<iteration>`."""

    def __init__(self, **at: Callable[[], object]) -> None:
        self.at = {int(key.removeprefix('at_')): call for key, call in at.items()}

    def before_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self.at.get(runner.iter, bool)()


def disturbed(work: Path, hooks: dict, disturbs: Disturbs) -> tuple[list[int], Runner]:
    """Train 60 iterations; return the steps whose scalars were written."""
    cfg = config(work, hooks, **{'train_cfg.max_iters': 60, 'train_cfg.val_interval': 25})
    with_evaluation(cfg).default_hooks.logger.log_metric_by_epoch = False
    cfg.default_hooks.logger.interval = 2
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook')
    runner = Runner.from_cfg(cfg)
    runner.register_hook(disturbs)
    runner.train()
    # Without the rows of the monitor, which are separate with a stock RuntimeInfoHook.
    return [line['step'] for line in logged(work) if {'loss', 'seen'} & {*line}], runner


ALL_STEPS = sorted([*range(2, 61, 2), 25, 50, 60])


@pytest.mark.parametrize('hooks', [SPARSE, dict(SPARSE, runtime_info='RuntimeInfoHook')])
def test_full_disk_drops_lines_only(
    hooks: dict, small_disk: Path, capfd: pytest.CaptureFixture
) -> None:
    work = small_disk / 'work'

    def free() -> None:
        (small_disk / 'all').unlink()

    steps, runner = disturbed(work, hooks, Disturbs(at_5=lambda: fill(small_disk), at_55=free))
    assert runner.iter == 60
    missing = list(ALL_STEPS)
    for step in steps:
        missing.remove(step)
    assert missing
    assert 6 <= min(missing) <= max(missing) <= 54  # the last page of a file has some room
    for path in (runner._log_dir / Path('vis_data')).glob('*.json'):
        # Stock writes the file of this run first, which may have had room for more lines.
        assert {json.loads(line)['step'] for line in path.read_text().splitlines()} >= {*steps}
    out, err = capfd.readouterr()
    # A short line may still fit where a long one did not.
    lost = [int(one) for one in re.findall('scalars of the log: written again; .*: (.+)', out)]
    assert out.count('scalars of the log: cannot write (No space left on') == len(lost) < 10
    assert sum(lost) == len(missing)
    assert err.count('--- Logging error') == 0
    assert (work / 'iter_60.pth').exists()


@pytest.mark.parametrize('is_file', [True, False])
def test_missing_work_dir_drops_lines_only(
    is_file: bool, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    work, away = tmp_path / 'work', tmp_path / 'away'

    def remove() -> None:
        work.rename(away)
        if is_file:
            work.touch()

    def bring_back() -> None:
        if is_file:
            work.unlink()
        away.rename(work)

    steps, runner = disturbed(work, SPARSE, Disturbs(at_12=remove, at_45=bring_back))
    assert runner.iter == 60
    assert steps == [step for step in ALL_STEPS if not 12 < step < 46]
    out = capfd.readouterr().out
    reason = 'Not a directory' if is_file else 'No such file or directory'
    assert out.count(f'({reason}); the training continues') == 3
    (log,) = work.rglob('*.log')
    text = log.read_text()
    assert [step for step in (10, 20, 50) if f'Iter(train) [{step}/60]' in text] == [10, 50]
    assert text.count(f'{log.name}: written again; lines lost: ') == 1
    assert out.count('scalars of the log: written again; lines lost: 17') == 1
    assert out.count('tempo.jsonl: written again; ') == 1


def test_work_dir_that_stays_missing(tmp_path: Path) -> None:
    work, away = tmp_path / 'work', tmp_path / 'away'
    cfg = config(work, SPARSE, **{'train_cfg.max_iters': 40})
    cfg.default_hooks.checkpoint = None
    runner = Runner.from_cfg(cfg)
    runner.register_hook(Disturbs(at_12=lambda: work.rename(away)))
    runner.train()
    assert runner.iter == 40
    assert [line['step'] for line in logged(away)] == [10]


def test_full_disk_does_not_hide_a_test_result(
    small_disk: Path, capfd: pytest.CaptureFixture
) -> None:
    cfg = with_evaluation(config(small_disk / 'work', SPARSE))
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator
    cfg.test_cfg = dict(type='TestLoop')
    runner = Runner.from_cfg(cfg)
    fill(small_disk)
    assert runner.test() == dict(seen=40.0)
    out = capfd.readouterr().out
    assert 'seen: 40.0' in out
    assert 'scalars of the log: cannot write' in out
