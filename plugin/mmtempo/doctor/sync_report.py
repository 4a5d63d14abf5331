"""Run a few iterations of a config and report where the host waits for the device."""

from __future__ import annotations

import copy
import logging
import os.path as osp
import tempfile
from collections import Counter
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

from mmtempo.cli.run import LaunchError
from mmtempo.cli.runner import build_runner, has_accelerator
from mmtempo.hooks.sparse_logger_hook import SparseLoggerHook
from mmtempo.logging.log_points import writes_line
from mmtempo.monitor.training_monitor import end_monitored
from mmtempo.policies.drop_in import optim_wrapper_class, stock, zero_wait

from .sync_census import HostSync, SyncCensus


@dataclass
class SyncReport:
    """Synchronizations of some iterations, with all hooks and without the data loader.

    Attributes:
        iterations: Number of iterations.
        host_syncs: Each synchronization and its count.
        with_lines: Whether each of the iterations writes a log line.
    """

    iterations: int
    host_syncs: list[tuple[HostSync, int]]
    with_lines: bool = False

    @property
    def per_iteration(self) -> float:
        return sum(count for _, count in self.host_syncs) / self.iterations


@dataclass
class SyncComparison:
    """Synchronizations of one config with stock parts, and with those of mmtempo.

    Attributes:
        stock: Report with stock parts.
        mmtempo: Report with parts of mmtempo.
        note: Difference between the config and what was run, for the reader.
    """

    stock: SyncReport
    mmtempo: SyncReport
    note: str = ''

    def show(self, console: Console) -> None:
        """Print each synchronization with both counts per iteration; the last line has the sums."""
        reports = (self.stock, self.mmtempo)
        counts: dict[HostSync, list[float]] = {}
        for index, report in enumerate(reports):
            for host_sync, count in report.host_syncs:
                counts.setdefault(host_sync, [0.0, 0.0])[index] = count / report.iterations
        table = Table()
        for name in ('stock', 'mmtempo'):
            table.add_column(name, justify='right')
        for name in ('kind', 'operation'):
            table.add_column(name)
        # Folded instead of cut, so that the path can be opened.
        table.add_column('where', overflow='fold')
        for one, row in sorted(counts.items(), key=lambda item: item[1], reverse=True):
            numbers = [f'{count:g}' for count in row]
            table.add_row(*numbers, one.kind, one.operation, _short(one.where))
        if counts:
            console.print(table)
        if self.note:
            console.print(self.note, highlight=False)
        over = ' and '.join(map(str, sorted({report.iterations for report in reports})))
        has_lines = any(report.with_lines for report in reports)
        which = 'with log lines' if has_lines else 'without log line or checkpoint'
        console.print(
            f'host-device synchronizations: {self.stock.per_iteration:g} per iteration with stock '
            f'parts, {self.mmtempo.per_iteration:g} with mmtempo, over {over} iterations {which}',
            highlight=False,
        )


def _short(where: str) -> str:
    """Return a path from the package on, or relative to the current folder."""
    _, marker, inside = where.rpartition('site-packages' + osp.sep)
    return inside if marker else osp.relpath(where)


class _Enough(Exception):
    """Signal that enough iterations have been counted."""


class _Open(Hook):
    """Hook that starts the census of an iteration, so it must be the first hook."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.seen = 0
        self.host_syncs: Counter[HostSync] = Counter()
        self.census: SyncCensus | None = None

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        # After the last iteration all scalars are read and the weights are checked.
        is_last = runner.iter + 1 == runner.max_iters
        if runner.iter >= self.first and not is_last and not _logs(runner, batch_idx):
            self.census = SyncCensus()
            self.census.__enter__()
            self.census.mark_on_host(data_batch)

    def close(self) -> None:
        """End the census of the iteration; raise _Enough after the last one."""
        if self.census is None:
            return
        census, self.census = self.census, None
        census.__exit__(None, None, None)
        self.host_syncs.update(dict(census.table()))
        self.seen += 1
        if self.seen == self.count:
            raise _Enough


def _logs(runner: Any, batch_idx: int) -> bool:
    """Return whether this iteration writes a log line while others do not.

    Such an iteration is left out, because what the line reads is not read in each iteration.
    """
    loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
    return not _always_logs(runner) and any(
        writes_line(hook, runner, batch_idx) for hook in loggers
    )


def _always_logs(runner: Any) -> bool:
    """Return whether each iteration writes a log line."""
    loader = runner.train_dataloader
    # In epochs of one iteration each iteration ends an epoch, which may log.
    ends = isinstance(runner.train_loop, EpochBasedTrainLoop) and len(loader) == 1
    return any(
        hook.interval == 1 or (ends and writes_line(hook, runner, 0))
        for hook in runner.hooks
        if isinstance(hook, LoggerHook)
    )


class _Close(Hook):
    """Hook that ends the census of an iteration, so it must be the last hook."""

    def __init__(self, opened: _Open) -> None:
        self.opened = opened

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.opened.close()


@contextmanager
def _temporary_run() -> Iterator[str]:
    """Yield a temporary folder for a run, then undo what the run changed in this process."""
    scopes = DefaultScope._instance_dict.copy()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            yield folder
        finally:
            DefaultScope._instance_dict = scopes
            # A Runner adds the time to the name of its logger.
            ours = [name for name in MMLogger._instance_dict if osp.basename(folder) in name]
            for logger in map(MMLogger.get_instance, ours):
                for handler in logger.handlers[:]:
                    if isinstance(handler, logging.FileHandler):
                        logger.removeHandler(handler)
                        handler.close()


def _build(cfg: Config, folder: str) -> Any:
    """Build the Runner of a config for training only, in this folder."""
    cfg.work_dir = folder
    cfg.load_from, cfg.resume = None, False
    cfg.log_level = 'WARNING'
    # Loggers, message hubs and visualizers outlive their run by name: under the same name,
    # another run in this process would write to this folder.
    cfg.experiment_name = osp.basename(folder)
    cfg.visualizer = dict(type='Visualizer', name=osp.basename(folder))
    # Evaluation is no part of an iteration, and may fail before the iterations are counted.
    for split in ('val', 'test'):
        for part in ('dataloader', 'cfg', 'evaluator'):
            cfg[f'{split}_{part}'] = None
    runner = build_runner(cfg)
    # Checkpoints may be large, and may be written outside of this folder.
    runner._hooks = [hook for hook in runner.hooks if not isinstance(hook, CheckpointHook)]
    for hook in runner.hooks:
        if isinstance(hook, LoggerHook):
            hook.out_dir = None
        if isinstance(hook, SparseLoggerHook):
            hook.progress = 'off'  # a bar would stay open when the run is cut short
    return runner


def count_host_syncs(cfg: Config, iterations: int, warm_up: int = 2) -> SyncReport:
    """Train for a few iterations in a temporary folder, and count synchronizations.

    Args:
        cfg: The config, complete and checked; it is changed.
        iterations: Number of iterations to count. The last iteration of the training is left out,
            and those with a log line, unless each iteration has one.
        warm_up: Number of iterations before the first that is counted. Defaults to 2.
    """
    with _temporary_run() as folder:
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
                f'the run ended after {runner.iter} iterations, before one could be counted; '
                f'train for more than {warm_up} iterations without log line'
            )
        return SyncReport(opened.seen, opened.host_syncs.most_common(), _always_logs(runner))


def replace_amp_without_gpu(cfg: Config) -> bool:
    """Replace stock mixed precision by float32 on a machine without GPU; return whether it did."""
    if has_accelerator() or optim_wrapper_class(cfg) is not AmpOptimWrapper:
        return False
    cfg.optim_wrapper.type = 'OptimWrapper'
    for argument in ('loss_scale', 'dtype', 'use_fsdp'):
        cfg.optim_wrapper.pop(argument, None)
    return True


def compare_host_syncs(cfg: Config, iterations: int, keep: Collection[str] = ()) -> SyncComparison:
    """Count the synchronizations of a config with stock parts and with those of mmtempo.

    Args:
        cfg: The config, complete and checked; it is not changed.
        iterations: Number of iterations to count in each of the two runs.
        keep: Keys that the user has set, see `zero_wait`. Defaults to ().
    """
    as_stock, as_ours = copy.deepcopy(cfg), copy.deepcopy(cfg)
    stock(as_stock)
    zero_wait(as_ours, keep=keep)
    in_float32 = {
        'stock parts': replace_amp_without_gpu(as_stock),
        'mmtempo': replace_amp_without_gpu(as_ours),
    }
    which = ' and '.join(name for name, is_replaced in in_float32.items() if is_replaced)
    note = f'{which}: run in float32, since AmpOptimWrapper needs a GPU' if which else ''
    return SyncComparison(
        count_host_syncs(as_stock, iterations), count_host_syncs(as_ours, iterations), note
    )
