"""Measure the cost of logging per iteration as the history grows, stock against ours."""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mmengine.hooks import Hook, IterTimerHook, LoggerHook, RuntimeInfoHook
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.runner import LogProcessor

from mmtempo.hooks import SparseLoggerHook, SparseRuntimeInfoHook

from .harness import Report, Timing, interleave, ratio

# Bars.
MIN_SPEEDUP_AT_200K = 50.0
MAX_GROWTH_1K_TO_1M = 1.2
INTERVAL = 50
SCALARS = 8
SIZES = {'1k': 1_000, '20k': 20_000, '200k': 200_000, '1M': 1_000_000}
# Windows of one run: a single window of ours is too short for the clock.
WINDOWS = dict(stock=1, ours=20)


class _Loop:
    """The attributes of a loop that logging reads."""

    max_epochs, epoch, val_interval = 1, 0, 0

    def __init__(self, iteration: int) -> None:
        self.iter, self.max_iters = iteration, 10_000_000
        self.dataloader = _Loader()


class _Loader:
    """The attributes of a loader that logging reads."""

    dataset = SimpleNamespace()

    def __len__(self) -> int:
        return 7_000_000


@dataclass
class _Runner:
    """The attributes of a runner that the hooks use; hub, log processor and hooks are real."""

    message_hub: MessageHub
    log_processor: LogProcessor
    train_loop: _Loop
    optim_wrapper: Any
    hooks: list[Hook]
    written: int = 0

    experiment_name, timestamp, val_loop, epoch, max_epochs = 'benchmark', 'now', None, 0, 1

    def __post_init__(self) -> None:
        self._train_loop = self.train_loop
        self.train_dataloader = self.train_loop.dataloader
        self.max_iters = self.train_loop.max_iters
        self.model = torch.nn.Identity()
        self.logger = logging.Logger('benchmark', logging.CRITICAL)
        self.visualizer = SimpleNamespace(add_scalars=self._write)

    @property
    def iter(self) -> int:
        return self.train_loop.iter

    def _write(self, *args: Any, **kwargs: Any) -> None:
        self.written += 1


class Arm:
    """The hooks of one arm, and the history of past iterations.

    Args:
        name: 'stock' or 'ours'.
        iterations: Number of past iterations.
    """

    def __init__(self, name: str, iterations: int) -> None:
        hub = MessageHub(f'{name}-{iterations}')
        past = np.random.default_rng(0).random(iterations)
        self.outputs = {f'loss_{n}': torch.tensor(float(n)) for n in range(SCALARS)}
        keys = ['lr', 'data_time', *self.outputs, 'time']
        for key in keys:
            hub.update_scalar(f'train/{key}', 0.0)
            hub.log_scalars[f'train/{key}'] = HistoryBuffer(past, np.ones(iterations, dtype=int))
        hooks: list[Hook] = [IterTimerHook()]
        if name == 'stock':
            hooks = [RuntimeInfoHook(), *hooks, LoggerHook(interval=INTERVAL)]
        else:
            logger = SparseLoggerHook(interval=INTERVAL, progress='off')
            hooks = [SparseRuntimeInfoHook(), *hooks, logger]
        self.windows = WINDOWS[name]
        wrapper = SimpleNamespace(get_lr=lambda: dict(lr=[1e-4]))
        # A multiple of the interval, so that windows end at log points.
        loop = _Loop(iterations // INTERVAL * INTERVAL)
        self.runner = _Runner(hub, LogProcessor(by_epoch=False), loop, wrapper, hooks)
        for hook in hooks:
            hook.before_train(self.runner)
            hook.before_train_epoch(self.runner)

    def run(self) -> None:
        """Run the hooks of some windows of iterations, each with its log line at the end."""
        runner = self.runner
        for _ in range(self.windows * INTERVAL):
            index = runner.iter
            for hook in runner.hooks:
                hook.before_train_iter(runner, index)
            for hook in runner.hooks:
                hook.after_train_iter(runner, index, outputs=self.outputs)
            runner.train_loop.iter += 1

    def microseconds(self, timing: Timing) -> Timing:
        """Convert seconds of a run to microseconds of an iteration."""
        return Timing([1e6 * seconds / self.windows / INTERVAL for seconds in timing.seconds])

    def history_bytes(self) -> int:
        """Return the bytes of the history in a checkpoint."""
        scalars = self.runner.message_hub.state_dict()['log_scalars']
        return sum(array.nbytes for history in scalars.values() for array in history.data)

    def checkpoint_bytes(self) -> int:
        """Return the bytes that the message hub takes in a checkpoint."""
        file = io.BytesIO()
        torch.save(self.runner.message_hub.state_dict(), file, pickle_module=pickle)
        return file.tell()


def measure_logger(quick: bool) -> Report:
    """Time all arms with all lengths of history; measure the history in a checkpoint."""
    report = Report('logger')
    arms = {
        (name, size): Arm(name, iterations)
        for size, iterations in SIZES.items()
        for name in ('stock', 'ours')
    }
    works: dict[str, Callable[[], Any]] = {' '.join(key): arm.run for key, arm in arms.items()}
    timings = interleave(works, rounds=5 if quick else 25)
    times = {key: arm.microseconds(timings[' '.join(key)]) for key, arm in arms.items()}
    title = f'an iteration of {SCALARS} scalars, a line every {INTERVAL}'
    columns = ('history', 'stock us', 'ours us', 'ratio', 'in a checkpoint: stock', 'ours')
    table = report.add_table(title, columns)
    for size in SIZES:
        stock, ours = times['stock', size], times['ours', size]
        faster = ratio(stock, ours)
        weights = [arms[name, size].checkpoint_bytes() for name in ('stock', 'ours')]
        for name, weight in zip(('stock', 'ours'), weights):
            figures = _figures(times[name, size])
            report.arms[f'{name} {size}'] = dict(figures, checkpoint_bytes=weight)
        table.add_row(
            size,
            *(timing.text(1) for timing in (stock, ours, faster)),
            *(f'{weight:,} B' for weight in weights),
        )
    report.notes.append(
        'measured: hooks for runtime info, timer and logger, with message hub and log processor; '
        'log lines are formatted, but not printed'
    )
    speedup = ratio(times['stock', '200k'], times['ours', '200k']).median
    report.at_least('times cheaper at 200k', speedup, MIN_SPEEDUP_AT_200K)
    growth = ratio(times['ours', '1M'], times['ours', '1k']).median
    report.at_most('ours, 1M against 1k', growth, MAX_GROWTH_1K_TO_1M)
    added = arms['ours', '1M'].history_bytes() - arms['ours', '1k'].history_bytes()
    report.at_most('bytes of history added to a checkpoint, 1k to 1M', added, 0)
    return report


def _figures(timing: Timing) -> dict[str, Any]:
    low, high = timing.quartiles
    return dict(median_us=timing.median, iqr_us=[low, high], n=len(timing.seconds))
