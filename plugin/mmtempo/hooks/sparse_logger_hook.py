"""Logs what has arrived from the device, without waiting for it."""

from __future__ import annotations

import sys
import time
from functools import cached_property
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, LoggerHook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS

from mmtempo.checkpoint.content import leaves_late_parts
from mmtempo.checkpoint.weights_check import is_copied_now
from mmtempo.logging.eta import RemainingTime
from mmtempo.logging.guarded_scalars import GuardedScalars
from mmtempo.logging.log_file import LogFile
from mmtempo.logging.log_points import ALONG, writes_line
from mmtempo.logging.progress_bar import ProgressBar
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.utils.write_guard import WriteGuard


@HOOKS.register_module()
class SparseLoggerHook(LoggerHook):
    """`LoggerHook` that never waits for the device, and tells a truer remaining time.

    At a log point the values of the window start their way to the host, all in one copy; the
    line is printed as soon as they are there, a few iterations later on a GPU, with the
    iteration and values of its log point. Text, JSON and visualizer get what `LoggerHook` gives.

    Example::

        default_hooks = dict(logger=dict(type='SparseLoggerHook', interval=50, progress='auto'))

    It logs the same keys as `LoggerHook`; one of them means more:

    ========  ====================================================================
    key       value
    ========  ====================================================================
    ``eta``   time left, with the evaluations and checkpoints to come, by what they
              cost so far, and without the first ten iterations' slowness
    ========  ====================================================================

    A line that cannot be written, as on a full disk, is dropped: the first one is reported, the
    next ones are tried and counted. Visualizer backends after the one that fails miss it as well.
    The same holds for the `.log` file.

    Args:
        progress: A live bar below the log: 'bar', 'off', or 'auto', where standard output is a
            terminal. Defaults to 'auto'.
        args: As `LoggerHook` takes them.
        kwargs: All arguments of `LoggerHook`: `interval`, `ignore_last`, `interval_exp_name`,
            `out_dir`, `out_suffix`, `keep_local`, `log_metric_by_epoch`, `backend_args`.
    """

    # As LoggerHook: after the timer, before scheduler and checkpoint.
    priority = 'BELOW_NORMAL'
    # A line is written some iterations after its log point: it takes along what other hooks have
    # put into the message hub under `ALONG`, and `flush` writes it at once.
    writes_late = True

    def __init__(self, *args: Any, progress: str = 'auto', **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if progress not in ('auto', 'bar', 'off'):
            raise ValueError(
                f"default_hooks.logger.progress must be 'auto', 'bar' or 'off', found {progress!r}"
            )
        self.progress = progress
        self._bar: ProgressBar | None = None
        self._remaining = RemainingTime()
        self._val_started, self._is_evaluating = 0.0, False
        self._line: tuple[_Moment, int] | None = None
        self._guard: WriteGuard | None = None  # of the run

    def before_run(self, runner: Any) -> None:
        super().before_run(runner)
        LogFile.take_over(runner.logger)
        self._guard = None

    def before_train(self, runner: Any) -> None:
        self._remaining = RemainingTime()
        self._line = None
        self._close_bar()  # of a training that failed
        wanted = self.progress == 'bar' or (self.progress == 'auto' and sys.stdout.isatty())
        if wanted and is_main_process():
            self._bar = ProgressBar(runner.max_iters, runner.logger)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        self._remaining.tick(time.perf_counter())
        if self._bar is not None:
            self._bar.advance(runner.iter + 1, lambda: self._seconds_left(runner))
        scalars = ScalarBuffer.of(runner.message_hub)
        if scalars is None or not writes_line(self, runner, batch_idx):
            view = _View(runner, self._guarded(runner))
            super().after_train_iter(view, batch_idx, data_batch, outputs)
        else:
            self._log(wait=True)
            self._set_eta(runner)
            visualizer = self._guarded(runner, runner.message_hub.runtime_info.pop(ALONG, None))
            self._line = _Moment(runner, scalars, visualizer), batch_idx
        self._log(wait=False)

    def before_val(self, runner: Any) -> None:
        self._log(wait=False)
        self._val_started, self._is_evaluating = time.perf_counter(), True
        if self._bar is not None:
            self._bar.stage('evaluation')

    def after_val_iter(self, runner: Any, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        # Lines in their order: that of the training is before those of the evaluation.
        self._log(wait=self.every_n_inner_iters(batch_idx, self.interval))
        super().after_val_iter(runner, batch_idx, *args, **kwargs)

    def after_val(self, runner: Any) -> None:
        self._remaining.paused('val', time.perf_counter() - self._val_started)
        self._is_evaluating = False

    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        self._log(wait=True)
        super().after_val_epoch(_View(runner, self._guarded(runner)), metrics)

    def after_test_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        write = super().after_test_epoch
        self._guard_of(runner).write(lambda: write(runner, metrics))

    @leaves_late_parts
    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        self._log(wait=not is_copied_now(runner))
        if not self._is_evaluating:  # a save there is part of what the evaluation costs
            self._remaining.saved()

    def after_train(self, runner: Any) -> None:
        self.flush()
        self._close_bar()

    def after_run(self, runner: Any) -> None:
        self._close_bar()
        super().after_run(_View(runner, self._guarded(runner)))

    def flush(self) -> None:
        """Write the line that is due; waits for its values."""
        self._write(wait=True)

    def _log(self, wait: bool) -> None:
        moment = self._write(wait)
        if moment is not None:
            moment.scalars.check()

    def _write(self, wait: bool) -> _Moment | None:
        """Write the line that is due, once its values are there; returns its log point."""
        if self._line is None:
            return None
        moment, batch_idx = self._line
        if not moment.scalars.arrived(moment.window, wait):
            return None
        self._line = None
        super().after_train_iter(moment, batch_idx)
        return moment

    def _set_eta(self, runner: Any) -> None:
        seconds = self._seconds_left(runner)
        # Without a timer stock shows none either.
        if seconds is not None and runner.message_hub.get_info('eta') is not None:
            runner.message_hub.update_info('eta', seconds)

    def _seconds_left(self, runner: Any) -> float | None:
        done, total = runner.iter + 1, runner.max_iters
        saves = sum(
            (runner.max_epochs - runner.epoch) / hook.interval
            if hook.by_epoch
            else _times_left(done, total, hook.interval, at_end=hook.save_last)
            for hook in runner.hooks
            if isinstance(hook, CheckpointHook) and hook.interval > 0
        )
        return self._remaining.left(total - done, _evaluations_left(runner, done), saves)

    def _guarded(self, runner: Any, along: dict | None = None) -> GuardedScalars:
        return GuardedScalars(runner, self._guard_of(runner), self.json_log_path, along)

    def _guard_of(self, runner: Any) -> WriteGuard:
        if self._guard is None:
            # As an error: mmengine drops a warning that it has shown before.
            self._guard = WriteGuard('scalars of the log', runner.logger.error)
        return self._guard

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _evaluations_left(runner: Any, done: int) -> int:
    """Evaluations to come: an iteration-based loop counts them in iterations, others in epochs."""
    loop = runner.train_loop
    if runner.val_loop is None or not getattr(loop, 'val_interval', 0):
        return 0
    by_epoch = hasattr(loop, 'run_epoch')
    done, total = (loop.epoch, loop.max_epochs) if by_epoch else (done, loop.max_iters)
    first = max(done, loop.val_begin - 1)
    return _times_left(first, total, loop.val_interval, at_end=True)


def _times_left(done: int, total: int, interval: int, at_end: bool) -> int:
    """How often what comes every so many is still to come; `at_end` also when that is odd."""
    last = -(-total // interval) if at_end else total // interval
    return max(0, last - done // interval)


class _View:
    """The runner with another visualizer."""

    def __init__(self, runner: Any, visualizer: GuardedScalars) -> None:
        self._runner, self.visualizer = runner, visualizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class _Moment(_View):
    """The runner as it was at a log point, for what is written later."""

    def __init__(self, runner: Any, scalars: ScalarBuffer, visualizer: GuardedScalars) -> None:
        super().__init__(runner, visualizer)
        self.scalars, self.window = scalars, scalars.send()
        self.iter, self.epoch = runner.iter, runner.epoch
        # Under DDP stock would ask the model's device for the peak of memory, and wait for it.
        self.model = None
        self._infos = dict(runner.message_hub.runtime_info)

    @cached_property
    def message_hub(self) -> MessageHub:
        """Made when it is read, that is after the window has arrived."""
        return MessageHub('log point', log_scalars=self.window.histories, runtime_info=self._infos)
