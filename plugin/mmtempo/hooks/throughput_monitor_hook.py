"""Measure where the time of a training goes, and which iterations are slow and why."""

from __future__ import annotations

import time
from typing import Any

from mmengine.hooks import IterTimerHook, LoggerHook
from mmengine.logging import HistoryBuffer
from mmengine.registry import HOOKS
from torch import nn

from mmtempo.logging.log_points import writes_line
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.monitor.hook_timer import add_edges, remove_edges
from mmtempo.monitor.options import MonitorOptions
from mmtempo.monitor.profile_window import modules_of
from mmtempo.monitor.training_monitor import TrainingMonitor

TIME, DATA_TIME = 'train/time', 'train/data_time'


@HOOKS.register_module()
class ThroughputMonitorHook(IterTimerHook):
    """`IterTimerHook` that attributes all time to phases and lists slow iterations.

    Each moment of the training is attributed to one phase: waiting for data, copies to the
    device, forward, backward, step, each hook by name, evaluation, and the rest, `unexplained`.
    With stock loops, or a runner that overrides `call_hook`, all hooks are one phase, `hooks`.

    An iteration that takes much longer than others of its kind is a stall: it is recorded with the
    seconds lost, its cause and evidence. The work dir gets `tempo.jsonl`, line by line, and
    `tempo_summary.json`, however the run ends; `tools/report.py WORK_DIR` makes a page of them.

    Example::

        default_hooks = dict(timer=dict(type='ThroughputMonitorHook'))

    It logs the keys of `IterTimerHook` with the meanings below, and further keys to the visualizer
    only, in the same step as the losses:

    ==========================  ==================================================================
    key                         value
    ==========================  ==================================================================
    ``data_time``               seconds waited for the batch, and nothing else
    ``time``                    seconds of the iteration, with hooks, without evaluation
    ``tempo/it_per_s``          iterations per second, with stalls, saves and evaluations
    ``tempo/it_per_s_steady``   the same without the time lost to slow iterations
    ``tempo/samples_per_s``     samples per second of all processes, with stalls as above
    ``tempo/p95``               95th percentile of the seconds of an iteration
    ``tempo/cv``                standard deviation over mean of the seconds of an iteration
    ``tempo/lost``              share of all time so far that slow iterations have lost, with
                                evaluations and saves
    ``tempo/data``              share of the time spent waiting for data; likewise for the other
                                phases, those of hooks as ``tempo/SparseLoggerHook``
    ==========================  ==================================================================

    Args:
        interval: Iterations per window. Defaults to None: a window ends with each logged line.
        stall_factor: How many times the usual deviation an iteration must exceed the usual time
            by, to count as slow. Defaults to 8.0.
        watch_interval: Seconds between two readings of memory and devices; 0 disables them.
            Defaults to 1.0.
        stage_profile: Which modules of the forward pass to measure, and when, as
            `dict(modules='auto', begin=50, iterations=100)`: dotted names of modules or 'auto'
            for the children of the model, the first iteration, and the number of iterations.
            Log, summary and report page show the result. Defaults to None: nothing is measured.
    """

    # As IterTimerHook: before the logger, which reads the times that this hook has measured.
    priority = 'NORMAL'

    def __init__(
        self,
        interval: int | None = None,
        stall_factor: float = 8.0,
        watch_interval: float = 1.0,
        stage_profile: dict | None = None,
    ) -> None:
        super().__init__()
        self.options = MonitorOptions(interval, stall_factor, watch_interval, stage_profile)
        self._monitor: TrainingMonitor | None = None
        self._timed_at = self._paused_at = 0.0
        # For each iteration since the last read: the time of its end, in seconds of
        # `perf_counter`, and the seconds waited for its batch.
        self._moments: list[float] = []
        self._is_complete = False
        self._loggers: list[LoggerHook] = []
        self._scalars: ScalarBuffer | None = None
        # Whether the scalars know the keys, and whether the hub has them in the right order.
        self._is_known = self._is_ordered = False

    def check_model(self, model: nn.Module) -> None:
        """Raise an error that names the config key if the model lacks a module to measure."""
        if self.options.stage_profile is not None:
            modules_of(self.options.stage_profile, model)

    def before_run(self, runner: Any) -> None:
        super().before_run(runner)
        add_edges(runner)

    def before_train(self, runner: Any) -> None:
        super().before_train(runner)
        self._timed_at, self._moments = time.perf_counter(), []
        self._loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self._scalars, self._is_known = ScalarBuffer.of(runner.message_hub), False
        self._is_ordered = False
        self._finish(runner)  # ends the monitor of a failed training that is started again
        try:
            self._monitor = TrainingMonitor(runner, self.options)
            self._monitor.begin(runner)
        except ValueError:  # a wrong value in the config
            raise
        except Exception as error:  # a part of the user that lacks what its base class has
            self._monitor = None
            runner.logger.warning(
                f'ThroughputMonitorHook: cannot monitor this training ({type(error).__name__}: '
                f'{error}); it times iterations as IterTimerHook does.'
            )

    def before_val(self, runner: Any) -> None:
        self._paused_at = time.perf_counter()

    def after_val(self, runner: Any) -> None:
        # No iteration is pending here: the scalars are read before each evaluation.
        self._timed_at += time.perf_counter() - self._paused_at

    def after_train(self, runner: Any) -> None:
        self._is_complete = True

    def after_run(self, runner: Any) -> None:
        self._finish(runner)
        remove_edges(runner)

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if self._monitor is None:
            super().before_train_iter(runner, batch_idx, data_batch)
        elif not self._is_ordered:
            # Registered here, so that log rows have their keys in the order of `IterTimerHook`.
            self._is_ordered = True
            if self._scalars is None:
                runner.message_hub.log_scalars.setdefault(DATA_TIME, HistoryBuffer())
            else:
                self._scalars.note_later([DATA_TIME], self._since)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        if self._monitor is None:
            super().after_train_iter(runner, batch_idx, data_batch, outputs)
            return
        self._moments += (time.perf_counter(), self._monitor.data_seconds)
        if self._scalars is None:
            for key, values in self._since().items():
                runner.message_hub.update_scalar(key, *values)
        elif not self._is_known:
            self._is_known = True
            self._scalars.note_later([TIME], self._since)
            self._gather()
            self._set_eta(runner)  # in the first iteration, as `IterTimerHook` does
        writers = [hook for hook in self._loggers if writes_line(hook, runner, batch_idx)]
        if writers:
            self._gather()
            self._set_eta(runner)
        interval = self.options.interval
        is_due = bool(writers) if interval is None else self.every_n_train_iters(runner, interval)
        if is_due or self._monitor.timeline.number >= self._monitor.look_at:
            self._gather()  # also without a line, so that the list of times stays short
            joins = any(getattr(hook, 'writes_late', False) for hook in writers)
            joins = joins and self._scalars is not None
            self._monitor.after_iteration(runner, is_due, joins)

    def _gather(self) -> None:
        if self._scalars is not None:
            self._scalars.gather()

    def _since(self) -> dict[str, list[float]]:
        """Return the times of the iterations since the last call, by key, in seconds."""
        moments, self._moments = self._moments, []
        if not moments:
            return {}
        ends, waited = moments[::2], moments[1::2]
        took = [end - start for start, end in zip([self._timed_at, *ends], ends)]
        self.time_sec_tot += ends[-1] - self._timed_at
        self._timed_at = ends[-1]
        return {TIME: took, DATA_TIME: waited}

    def _set_eta(self, runner: Any) -> None:
        done = runner.iter + 1
        average = self.time_sec_tot / (done - self.start_iter)
        runner.message_hub.update_info('eta', average * (runner.max_iters - done))

    def _finish(self, runner: Any) -> None:
        """End the monitor of a training that is complete or has failed."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.leave(runner, self._is_complete)
        self._is_complete = False
