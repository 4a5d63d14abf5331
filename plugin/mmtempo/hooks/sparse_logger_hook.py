"""Log scalars once they have arrived from the device, without waiting for it."""

from __future__ import annotations

import sys
import time
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import LoggerHook
from mmengine.registry import HOOKS

from mmtempo.checkpoint.weights_check import is_copied_now
from mmtempo.logging.eta import RemainingTime, evaluations_left, saves_left
from mmtempo.logging.guarded_scalars import GuardedScalars
from mmtempo.logging.log_file import LogFile
from mmtempo.logging.log_points import ALONG, writes_line
from mmtempo.logging.progress_bar import ProgressBar
from mmtempo.logging.runner_view import LogPoint, RunnerView
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.utils.write_guard import WriteGuard


@HOOKS.register_module()
class SparseLoggerHook(LoggerHook):
    """`LoggerHook` that never waits for the device.

    At a log point one copy of the window's values to the host is started. The line is written as
    soon as they have arrived, a few iterations later on a GPU, with the iteration and the values
    of its log point. Text, JSON and visualizer get what `LoggerHook` writes.

    Example::

        default_hooks = dict(logger=dict(type='SparseLoggerHook', interval=50, progress='auto'))

    It logs the keys of `LoggerHook`, of which one covers more:

    ========  ====================================================================
    key       value
    ========  ====================================================================
    ``eta``   time left, including the evaluations and saves to come at their mean
              cost so far, and without the cost of the first ten iterations
    ========  ====================================================================

    A line that cannot be written, as on a full disk, is dropped; so is a line of the `.log` file.
    The first failure is reported, and later lines are tried and counted. A visualizer backend
    that comes after the failing one misses the line as well.

    Args:
        progress: Live progress bar below the log: 'bar', 'off', or 'auto' for a bar if standard
            output is a terminal. Defaults to 'auto'.
        args: Positional arguments of `LoggerHook`.
        kwargs: Keyword arguments of `LoggerHook`: `interval`, `ignore_last`, `interval_exp_name`,
            `out_dir`, `out_suffix`, `keep_local`, `log_metric_by_epoch`, `backend_args`.
    """

    # As LoggerHook: after the timer, whose values it logs, and before scheduler and checkpoint.
    priority = 'BELOW_NORMAL'
    # A line is written after its log point, so other hooks add scalars of that step to it under
    # `ALONG` in the message hub; `flush` writes the pending line at once.
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
        self._line: tuple[LogPoint, int] | None = None  # the pending line and its batch
        self._guard: WriteGuard | None = None

    def before_run(self, runner: Any) -> None:
        super().before_run(runner)
        LogFile.take_over(runner.logger)
        self._guard = None

    def before_train(self, runner: Any) -> None:
        self._remaining = RemainingTime()
        self._line = None
        self._close_bar()  # left by a failed training
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
            view = RunnerView(runner, self._guarded(runner))
            super().after_train_iter(view, batch_idx, data_batch, outputs)
        else:
            self._log(wait=True)
            self._set_eta(runner)
            visualizer = self._guarded(runner, runner.message_hub.runtime_info.pop(ALONG, None))
            self._line = LogPoint(runner, scalars, visualizer), batch_idx
        self._log(wait=False)

    def before_val(self, runner: Any) -> None:
        self._log(wait=False)
        self._val_started, self._is_evaluating = time.perf_counter(), True
        if self._bar is not None:
            self._bar.stage('evaluation')

    def after_val_iter(self, runner: Any, batch_idx: int, *args: Any, **kwargs: Any) -> None:
        # The pending line of the training is written before those of the evaluation.
        self._log(wait=self.every_n_inner_iters(batch_idx, self.interval))
        super().after_val_iter(runner, batch_idx, *args, **kwargs)

    def after_val(self, runner: Any) -> None:
        self._remaining.paused('val', time.perf_counter() - self._val_started)
        self._is_evaluating = False

    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        self._log(wait=True)
        super().after_val_epoch(RunnerView(runner, self._guarded(runner)), metrics)

    def after_test_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        write = super().after_test_epoch
        self._guard_of(runner).write(lambda: write(runner, metrics))

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        self._log(wait=not is_copied_now(runner))
        if not self._is_evaluating:  # there it is part of the cost of the evaluation
            self._remaining.saved()

    def after_train(self, runner: Any) -> None:
        self.flush()
        self._close_bar()

    def after_run(self, runner: Any) -> None:
        self._close_bar()
        super().after_run(RunnerView(runner, self._guarded(runner)))

    def flush(self) -> None:
        """Write the pending line; waits for its values."""
        self._write(wait=True)

    def _log(self, wait: bool) -> None:
        point = self._write(wait)
        if point is not None:
            point.scalars.check()

    def _write(self, wait: bool) -> LogPoint | None:
        """Write the pending line if its values have arrived, and return its log point.

        Args:
            wait: Whether to wait for the values.
        """
        if self._line is None:
            return None
        point, batch_idx = self._line
        if not point.scalars.deliver(point.window, wait):
            return None
        self._line = None
        super().after_train_iter(point, batch_idx)
        return point

    def _set_eta(self, runner: Any) -> None:
        seconds = self._seconds_left(runner)
        # `LoggerHook` shows no remaining time without a timer either.
        if seconds is not None and runner.message_hub.get_info('eta') is not None:
            runner.message_hub.update_info('eta', seconds)

    def _seconds_left(self, runner: Any) -> float | None:
        done = runner.iter + 1
        return self._remaining.left(
            runner.max_iters - done, evaluations_left(runner, done), saves_left(runner, done)
        )

    def _guarded(self, runner: Any, along: dict | None = None) -> GuardedScalars:
        return GuardedScalars(runner, self._guard_of(runner), self.json_log_path, along)

    def _guard_of(self, runner: Any) -> WriteGuard:
        if self._guard is None:
            # As errors, because mmengine drops a warning whose text it has shown before.
            self._guard = WriteGuard('scalars of the log', runner.logger.error)
        return self._guard

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
