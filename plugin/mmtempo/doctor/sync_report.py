"""Runs a few iterations of a config and says where the host waits for the device."""

from __future__ import annotations

import copy
import logging
import os.path as osp
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook, LoggerHook
from mmengine.logging import MMLogger
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import DefaultScope
from mmengine.runner import EpochBasedTrainLoop
from rich.console import Console
from rich.table import Table

from mmtempo.cli.config import LaunchError, build_runner, has_accelerator
from mmtempo.hooks.sparse_logger_hook import SparseLoggerHook
from mmtempo.logging.log_points import writes_line
from mmtempo.monitor.training_monitor import end_monitored
from mmtempo.policies.drop_in import optim_wrapper_class, stock, zero_wait

from .sync_census import SyncCensus, Wait


@dataclass
class WaitReport:
    """Waits of some iterations, all hooks included, without what the loader does."""

    iterations: int
    waits: list[tuple[Wait, int]]
    with_lines: bool = False

    @property
    def per_iteration(self) -> float:
        return sum(count for _, count in self.waits) / self.iterations

    def show(self, console: Console) -> None:
        """Print each wait with its place, the most frequent first."""
        _print_table(console, {'an iteration': self})
        _say(console, f'{self.per_iteration:g} waits an iteration, over {self.iterations}', self)


@dataclass
class WaitComparison:
    """Waits of one config with stock parts, and with mmtempo's."""

    stock: WaitReport
    mmtempo: WaitReport
    note: str = ''

    def show(self, console: Console) -> None:
        """Print each wait once, with how often in either; their sums are the last line."""
        _print_table(console, {'stock': self.stock, 'mmtempo': self.mmtempo})
        if self.note:
            console.print(self.note, highlight=False)
        over = sorted({self.stock.iterations, self.mmtempo.iterations})
        _say(
            console,
            f'{self.stock.per_iteration:g} waits an iteration with stock parts, '
            f"{self.mmtempo.per_iteration:g} with mmtempo's, over {' and '.join(map(str, over))}",
            self.stock,
            self.mmtempo,
        )


def _print_table(console: Console, columns: dict[str, WaitReport]) -> None:
    """A row for each wait, with its count an iteration in each of the reports."""
    counts: dict[Wait, list[float]] = {}
    for index, report in enumerate(columns.values()):
        for wait, count in report.waits:
            row = counts.setdefault(wait, [0.0] * len(columns))
            row[index] = count / report.iterations
    if not counts:
        return
    table = Table()
    for name in columns:
        table.add_column(name, justify='right')
    for name in ('kind', 'operation'):
        table.add_column(name)
    # A place that is cut cannot be opened.
    table.add_column('where', overflow='fold')
    for wait, row in sorted(counts.items(), key=lambda item: item[1], reverse=True):
        numbers = [f'{count:g}' for count in row]
        table.add_row(*numbers, wait.kind, wait.operation, _short(wait.where))
    console.print(table)


def _say(console: Console, sums: str, *reports: WaitReport) -> None:
    included = any(report.with_lines for report in reports)
    which = ', log lines included' if included else ' without log line or checkpoint'
    console.print(f'{sums} iterations{which}', highlight=False)


def _short(where: str) -> str:
    """From the package on, where it is one; else from here."""
    _, marker, inside = where.rpartition('site-packages' + osp.sep)
    return inside if marker else osp.relpath(where)


class _Enough(Exception):
    """Enough iterations have been seen."""


class _Open(Hook):
    """Starts the census of an iteration; it has to be the first of the hooks."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.seen = 0
        self.waits: dict[Wait, int] = {}
        self.census: SyncCensus | None = None

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        # After the last one everything is read, and the weights are looked at.
        is_last = runner.iter + 1 == runner.max_iters
        if runner.iter >= self.first and not is_last and not _logs(runner, batch_idx):
            self.census = SyncCensus()
            self.census.__enter__()
            self.census.mark_on_host(data_batch)

    def close(self) -> None:
        if self.census is None:
            return
        census, self.census = self.census, None
        census.__exit__(None, None, None)
        for wait, count in census.table():
            self.waits[wait] = self.waits.get(wait, 0) + count
        self.seen += 1
        if self.seen == self.count:
            raise _Enough


def _logs(runner: Any, batch_idx: int) -> bool:
    """Whether a log line is written that is not in each iteration: what it reads is not either."""
    loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
    return not _always_logs(runner) and any(
        writes_line(hook, runner, batch_idx) for hook in loggers
    )


def _always_logs(runner: Any) -> bool:
    """Whether there is no iteration without a log line."""
    loader = runner.train_dataloader
    # An epoch of one iteration ends with each.
    ends = isinstance(runner.train_loop, EpochBasedTrainLoop) and len(loader) == 1
    return any(
        hook.interval == 1 or (ends and writes_line(hook, runner, 0))
        for hook in runner.hooks
        if isinstance(hook, LoggerHook)
    )


class _Close(Hook):
    """Ends the census; it has to be the last of the hooks."""

    def __init__(self, opened: _Open) -> None:
        self.opened = opened

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.opened.close()


@contextmanager
def _thrown_away() -> Iterator[str]:
    """A folder for a run; what the run changes for the whole process is put back."""
    scopes = DefaultScope._instance_dict.copy()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            yield folder
        finally:
            DefaultScope._instance_dict = scopes
            # Runners add the time to their name.
            ours = [name for name in MMLogger._instance_dict if osp.basename(folder) in name]
            for logger in map(MMLogger.get_instance, ours):
                for handler in logger.handlers[:]:
                    if isinstance(handler, logging.FileHandler):
                        logger.removeHandler(handler)
                        handler.close()


def _build(cfg: Config, folder: str) -> Any:
    """The config's run, in this folder, with nothing but training."""
    cfg.work_dir = folder
    cfg.load_from, cfg.resume = None, False
    cfg.log_level = 'WARNING'
    # Loggers, message hubs and visualizers outlive their run under their name; another
    # run of that name would go on writing to this one's folder.
    cfg.experiment_name = osp.basename(folder)
    cfg.visualizer = dict(type='Visualizer', name=osp.basename(folder))
    # Neither is part of an iteration, and neither may end the run before it is seen.
    for split in ('val', 'test'):
        for part in ('dataloader', 'cfg', 'evaluator'):
            cfg[f'{split}_{part}'] = None
    runner = build_runner(cfg)
    # Checkpoints may be large, and go wherever the config says.
    runner._hooks = [hook for hook in runner.hooks if not isinstance(hook, CheckpointHook)]
    for hook in runner.hooks:
        if isinstance(hook, LoggerHook):
            hook.out_dir = None
        if isinstance(hook, SparseLoggerHook):
            hook.progress = 'off'  # nobody would close the bar
    return runner


def count_waits(cfg: Config, iterations: int, warm_up: int = 2) -> WaitReport:
    """Train a little in a folder that is thrown away, and count.

    Args:
        cfg: The config, complete and checked; it is changed.
        iterations: How many iterations to look at; the last one is left out, and those with a
            log line, unless each has one.
        warm_up: How many to let pass before. Defaults to 2.
    """
    with _thrown_away() as folder:
        runner = _build(cfg, folder)
        opened = _Open(warm_up, iterations)
        runner._hooks = [opened, *runner.hooks, _Close(opened)]
        try:
            runner.train()
        except _Enough as enough:
            end_monitored(enough)
        finally:
            if opened.census is not None:
                opened.census.__exit__(None, None, None)
        if not opened.seen:
            raise LaunchError(
                f'the run ended after {runner.iter} iterations, before one could be looked at; '
                f'it takes more than {warm_up} without log line'
            )
        waits = sorted(opened.waits.items(), key=lambda item: -item[1])
        return WaitReport(opened.seen, waits, _always_logs(runner))


def without_gpu(cfg: Config) -> bool:
    """Take float32 where mixed precision needs a device that is not there."""
    if has_accelerator() or optim_wrapper_class(cfg) is not AmpOptimWrapper:
        return False
    cfg.optim_wrapper.type = 'OptimWrapper'
    for argument in ('loss_scale', 'dtype', 'use_fsdp'):
        cfg.optim_wrapper.pop(argument, None)
    return True


def compare_waits(cfg: Config, iterations: int, keep: Collection[str] = ()) -> WaitComparison:
    """Count the waits of a config with stock parts and with ours.

    Args:
        cfg: The config, complete and checked; it stays as it is.
        iterations: How many iterations of each to look at.
        keep: Keys that were set on purpose, see `zero_wait`. Defaults to ().
    """
    as_stock, as_ours = copy.deepcopy(cfg), copy.deepcopy(cfg)
    stock(as_stock)
    zero_wait(as_ours, keep=keep)
    plain = {
        'stock parts': without_gpu(as_stock),
        "mmtempo's": without_gpu(as_ours),
    }
    which = ' and '.join(name for name, is_plain in plain.items() if is_plain)
    note = f'with {which} in float32: AmpOptimWrapper needs a GPU' if which else ''
    return WaitComparison(count_waits(as_stock, iterations), count_waits(as_ours, iterations), note)
