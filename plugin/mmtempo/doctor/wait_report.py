"""Runs a few iterations of a config and says where the host waits for the device."""

from __future__ import annotations

import copy
import os.path as osp
import tempfile
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config
from mmengine.hooks import CheckpointHook, Hook, LoggerHook
from rich.console import Console
from rich.table import Table

from ..core.waits import Wait, WaitCensus
from ..launch import build_runner
from ..overlay import stock, zero_wait


@dataclass
class WaitReport:
    """Waits of some iterations, all hooks included, without what the loader does."""

    iterations: int
    waits: list[tuple[Wait, int]]

    @property
    def per_iteration(self) -> float:
        return sum(count for _, count in self.waits) / self.iterations

    def show(self, console: Console) -> None:
        """Print each wait with its place, the most frequent first."""
        _print_table(console, {'an iteration': self})
        _say(console, f'{self.per_iteration:g} waits an iteration, over {self.iterations}')


@dataclass
class WaitComparison:
    """Waits of one config with stock parts, and with mmtempo's."""

    stock: WaitReport
    mmtempo: WaitReport

    def show(self, console: Console) -> None:
        """Print each wait once, with how often in either; their sums are the last line."""
        _print_table(console, {'stock': self.stock, 'mmtempo': self.mmtempo})
        over = sorted({self.stock.iterations, self.mmtempo.iterations})
        _say(
            console,
            f'{self.stock.per_iteration:g} waits an iteration with stock parts, '
            f"{self.mmtempo.per_iteration:g} with mmtempo's, over {' and '.join(map(str, over))}",
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
    for name in ('kind', 'operation', 'where'):
        table.add_column(name)
    for wait, row in sorted(counts.items(), key=lambda item: item[1], reverse=True):
        numbers = [f'{count:g}' for count in row]
        table.add_row(*numbers, wait.kind, wait.operation, _short(wait.where))
    console.print(table)


def _say(console: Console, sums: str) -> None:
    console.print(f'{sums} iterations without log line or checkpoint', highlight=False)


def _short(where: str) -> str:
    """From the package on, where it is one; else from here."""
    _, marker, inside = where.rpartition('site-packages' + osp.sep)
    return inside if marker else osp.relpath(where)


class _Enough(Exception):
    """Enough iterations have been seen."""


class _Open(Hook):
    """Starts the census before any other hook of an iteration."""

    priority = 'HIGHEST'

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count
        self.seen = 0
        self.waits: dict[Wait, int] = {}
        self.census: WaitCensus | None = None

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if runner.iter >= self.first and not _is_special(runner):
            self.census = WaitCensus()
            self.census.__enter__()
            self.census.lies_on_host(data_batch)

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


def _is_special(runner: Any) -> bool:
    """Whether a log line or a checkpoint is written: what that reads is not read each time."""
    intervals = [
        hook.interval
        for hook in runner.hooks
        if isinstance(hook, LoggerHook) or (isinstance(hook, CheckpointHook) and not hook.by_epoch)
    ]
    return any(interval > 1 and (runner.iter + 1) % interval == 0 for interval in intervals)


class _Close(Hook):
    """Ends the census after all other hooks."""

    priority = 'LOWEST'

    def __init__(self, opened: _Open) -> None:
        self.opened = opened

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self.opened.close()


def count_waits(cfg: Config, iterations: int, warm_up: int = 2) -> WaitReport:
    """Train a little in a folder that is thrown away, and count.

    Args:
        cfg: The config, complete and checked; it is changed.
        iterations: How many iterations to look at; those with a log line or a checkpoint are
            left out.
        warm_up: How many to let pass before. Defaults to 2.
    """
    with tempfile.TemporaryDirectory() as folder:
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
        opened = _Open(warm_up, iterations)
        runner.register_hook(opened)
        runner.register_hook(_Close(opened))
        try:
            runner.train()
        except _Enough:
            pass
        finally:
            if opened.census is not None:
                opened.census.__exit__(None, None, None)
        if not opened.seen:
            raise ValueError(
                f'the run ended after {runner.iter} iterations, before one could be looked at; '
                f'it takes more than {warm_up} without log line or checkpoint'
            )
        waits = sorted(opened.waits.items(), key=lambda item: -item[1])
        return WaitReport(opened.seen, waits)


def compare_waits(cfg: Config, iterations: int) -> WaitComparison:
    """Count the waits of a config with stock parts and with ours.

    Args:
        cfg: The config, complete and checked; it stays as it is.
        iterations: How many iterations of each to look at.
    """
    reports = []
    for exchange in (stock, zero_wait):
        exchanged = copy.deepcopy(cfg)
        exchange(exchanged)
        reports.append(count_waits(exchanged, iterations))
    return WaitComparison(*reports)
