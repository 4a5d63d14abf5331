"""Tells which iterations were slow, why, and what that cost."""

from __future__ import annotations

import time
from typing import Any

from mmengine.hooks import IterTimerHook, LoggerHook
from mmengine.logging import HistoryBuffer
from mmengine.registry import HOOKS
from torch import nn

from mmtempo.logging.log_points import writes_line
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.monitor.options import MonitorOptions
from mmtempo.monitor.profile_window import modules_of
from mmtempo.monitor.training_monitor import TrainingMonitor

TIME, DATA_TIME = 'train/time', 'train/data_time'


@HOOKS.register_module()
class ThroughputMonitorHook(IterTimerHook):
    """`IterTimerHook` that accounts for every moment, and lists slow iterations with their cause.

    Each moment of the training is charged to one phase: waiting for data, copies to the device,
    forward, backward, step, each hook by name, evaluation, and what is left, `unexplained`. An
    iteration that takes much longer than others of its kind is an entry with the seconds lost,
    the phase to blame and evidence. The work dir gets `tempo.jsonl`, line by line, and
    `tempo_summary.json`, however the run ends; `tools/report.py WORK_DIR` makes a page of them.

    Example::

        default_hooks = dict(timer=dict(type='ThroughputMonitorHook'))

    It logs the keys of `IterTimerHook`, with these meanings, and others through the visualizer
    alone, in the same step as the losses:

    ==========================  ==================================================================
    key                         value
    ==========================  ==================================================================
    ``data_time``               seconds waited for the batch, and nothing else
    ``time``                    seconds of the iteration, hooks included, evaluation left out
    ``tempo/it_per_s``          iterations a second, end to end: with stalls, saves, evaluation
    ``tempo/it_per_s_steady``   the same without what was lost to slow iterations
    ``tempo/samples_per_s``     end to end, of all processes
    ``tempo/p95``               seconds; one iteration in twenty takes longer
    ``tempo/cv``                how unsteady iterations are: deviation over mean
    ``tempo/lost``              share of all time so far that slow iterations have lost,
                                evaluations and saves among them
    ``tempo/data``              share of the time spent waiting for data; so for other phases,
                                each hook's as ``tempo/SparseLoggerHook``
    ==========================  ==================================================================

    Args:
        interval: Iterations between two windows. Defaults to None: where the logger writes.
        stall_factor: How many times the usual deviation an iteration must take longer to be
            called slow. Defaults to 8.0.
        watch_interval: Seconds between two looks at memory and devices; 0 turns them off.
            Defaults to 1.0.
        stage_profile: What to measure of the forward pass, as `dict(modules='auto', begin=50,
            iterations=100)`: modules by their dotted names, or 'auto' for the children of the
            model; from which iteration on, and how many. The log, the summary and the page of the
            report show them. Defaults to None: nothing.
    """

    # As IterTimerHook: what it has measured has to be there when the logger looks.
    priority = 'NORMAL'

    def __init__(
        self,
        interval: int | None = None,
        stall_factor: float = 8.0,
        watch_interval: float = 1.0,
        stage_profile: dict | None = None,
    ) -> None:
        super().__init__()
        self.options = MonitorOptions.checked(interval, stall_factor, watch_interval, stage_profile)
        self._monitor: TrainingMonitor | None = None
        self._timed_at = self._paused_at = 0.0
        # Of each iteration since anybody asked: when it was here, and seconds waited for its batch.
        self._moments: list[float] = []
        self._is_complete = False
        self._loggers: list[LoggerHook] = []
        self._scalars: ScalarBuffer | None = None
        self._is_known = self._is_ordered = False  # the keys to the scalars, and to the hub

    def check_model(self, model: nn.Module) -> None:
        """Raise, naming the config's key, where a part that it is to measure is not there."""
        if self.options.stage_profile is not None:
            modules_of(self.options.stage_profile, model)

    def before_train(self, runner: Any) -> None:
        super().before_train(runner)
        self._timed_at, self._moments = time.perf_counter(), []
        self._loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self._scalars, self._is_known = ScalarBuffer.of(runner.message_hub), False
        self._is_ordered = False
        self._finish(runner)  # of a training that has failed, begun again by hand
        try:
            self._monitor = TrainingMonitor(runner, self.options)
            self._monitor.begin(runner)
        except ValueError:  # what the config asks for is not there
            raise
        except Exception as error:  # parts of somebody's own, that are not what they stand for
            self._monitor = None
            runner.logger.warning(
                f'ThroughputMonitorHook cannot watch this training ({type(error).__name__}: '
                f'{error}); it does what IterTimerHook does.'
            )

    def before_val(self, runner: Any) -> None:
        self._paused_at = time.perf_counter()

    def after_val(self, runner: Any) -> None:
        # Of what came before nothing is left: who keeps the scalars reads them before evaluations.
        self._timed_at += time.perf_counter() - self._paused_at

    def after_train(self, runner: Any) -> None:
        self._is_complete = True

    def after_run(self, runner: Any) -> None:
        self._finish(runner)

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if self._monitor is None:
            super().before_train_iter(runner, batch_idx, data_batch)
        elif not self._is_ordered:
            # Here, so that rows of the log have the order of `IterTimerHook`'s keys.
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
        self._log(runner, batch_idx, self._monitor)

    def _log(self, runner: Any, batch_idx: int, monitor: TrainingMonitor) -> None:
        """Tell what was found where somebody looks; at other iterations, as little as possible."""
        if self._scalars is None:
            for key, values in self._since().items():
                runner.message_hub.update_scalar(key, *values)
        elif not self._is_known:
            self._is_known = True
            self._scalars.note_later([TIME], self._since)
            self._gather()
            self._set_eta(runner)  # with the first iteration, as `IterTimerHook`
        writers = [hook for hook in self._loggers if writes_line(hook, runner, batch_idx)]
        if writers:
            self._gather()
            self._set_eta(runner)
        interval = self.options.interval
        is_due = bool(writers) if interval is None else self.every_n_train_iters(runner, interval)
        if is_due or monitor.timeline.number >= monitor.look_at:
            self._gather()  # also where nobody writes a line: they are not to become many
            joins = any(getattr(hook, 'writes_late', False) for hook in writers)
            monitor.after_iteration(runner, is_due, joins and self._scalars is not None)

    def _gather(self) -> None:
        if self._scalars is not None:
            self._scalars.gather()

    def _since(self) -> dict[str, list[float]]:
        """What iterations have taken, since this was asked last."""
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
        """Of a training that is complete, or that has failed before somebody goes on by hand."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            monitor.leave(runner, self._is_complete)
        self._is_complete = False
