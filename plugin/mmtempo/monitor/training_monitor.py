"""Measure one training from its first iteration to its end, also where it fails."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_rank
from mmengine.runner import Runner

from mmtempo.device.event_timer import EventTimer
from mmtempo.logging.guarded_scalars import GuardedScalars
from mmtempo.logging.log_points import ALONG
from mmtempo.report.terminal import to_text
from mmtempo.system.process_counters import IterationCounters
from mmtempo.system.readings import MachineReadings
from mmtempo.system.sampler import MachineSampler
from mmtempo.timing.log_histogram import LogHistogram
from mmtempo.timing.run_files import RunFiles
from mmtempo.timing.statistics import IterationStats
from mmtempo.timing.timeline import FIRST, NANO, Timeline
from mmtempo.utils.phases import STEP, activate, charged_to, deactivate
from mmtempo.utils.runner import optimizers_of
from mmtempo.utils.write_guard import WriteGuard

from .hook_calls import timers
from .hook_timer import VISUALIZER, HookTimer
from .options import MonitorOptions
from .profile_window import ProfileWindow, line_of
from .rank_times import RankTimes
from .run_recorder import RunRecorder
from .run_settings import cache_of, files_of, length_of, setting_of, shape_of
from .step_timer import StepTimer

WARM_UP = 5  # first iterations, which may be slow
# Iterations after which a window is taken without a log point. The timeline keeps 1024 iterations,
# and the statistics may need the last 384 of earlier windows again.
MOST_UNSEEN = 600
FACTS = (*IterationCounters.NAMES, 'recompiles')
MOST_SHAPES = 256
LATE = 0.001  # seconds of waiting from which on the origin of a batch is recorded


# Active monitors of this process.
_active: weakref.WeakSet[TrainingMonitor] = weakref.WeakSet()


def end_monitored(error: BaseException) -> None:
    """Write to the files of all active trainings of this process that this error ended them."""
    for monitor in list(_active):
        with contextlib.suppress(Exception):  # it must not hide the error of the training
            monitor.abandon(error)


class TrainingMonitor:
    """Monitor of one training: marks its phases in a timeline and writes the files of the run.

    The runner needs the hooks of `add_edges`, except where our loops call all hooks.

    Args:
        runner: Runner of the training.
        options: Options of the hook.

    Attributes:
        timeline: Timeline of the training.
        report: Recorder of the run.
        data_seconds: Seconds that the last iteration waited for its batch, or batches.
        look_at: Number of the iteration at which a window is taken even without a log point.
    """

    clock = staticmethod(time.perf_counter_ns)

    def __init__(self, runner: Any, options: MonitorOptions) -> None:
        device = next(runner.model.parameters(), torch.empty(0)).device
        self._counters = IterationCounters()
        self.timeline = Timeline('data', len(FACTS), clock=self.clock, before=runner.iter)
        self._event_timer = EventTimer.of(device)
        self._step_timer = StepTimer(
            self.timeline, None if self._event_timer is None else self._event_timer.mark
        )
        self._profile = ProfileWindow.of(options.stage_profile, runner.model, device, runner.iter)
        self._batches = getattr(runner.train_loop, 'batches_per_iteration', 1)
        # Otherwise the step timer is called directly, which saves two calls per iteration.
        is_more = self._event_timer is not None or self._profile is not None or self._batches > 1
        self._hook_timer = HookTimer(
            self.timeline,
            opening=dict(
                before_train_iter=self._open,
                after_train_iter=self._end_step if is_more else self._step_timer.end,
            ),
            closing=dict(
                before_train_iter=self._begin_step if is_more else self._step_timer.begin,
                after_train_iter=self._settle,
                after_train_epoch=self._count,
                after_val=self._count,
            ),
        )
        self._sampler: MachineSampler | None = None
        if options.watch_interval:
            self._sampler = MachineSampler(options.watch_interval, readings=MachineReadings(device))
        self._ranks, self._writes = RankTimes(), get_rank() == 0
        self._logger = runner.logger
        self._guard = WriteGuard('scalars of the monitor', runner.logger.error)
        self._stats = IterationStats(
            self.timeline,
            FACTS,
            self._hook_timer.categories,
            options.stall_factor,
            machine=None if self._sampler is None else self._sampler.between,
            kinds_by=STEP,
        )
        self.report = RunRecorder(
            setting_of(runner),
            self._stats,
            RunFiles(runner.work_dir, runner.logger.error) if self._writes else None,
            runner.iter,
        )
        self.data_seconds = 0.0  # of several batches, complete only after the step
        self._warm = runner.iter + WARM_UP
        self._seen: set[tuple | None] = {None}  # shapes of inputs
        self._shape: tuple | None = None  # of the open iteration
        self._is_new_shape = False
        self._suspect = 0.0  # nanoseconds from which on an iteration may be judged slow
        self.look_at = runner.iter + MOST_UNSEEN
        self._device_parts: dict[str, LogHistogram] = {}
        # A weak reference: the loop references the runner, which must not be kept alive.
        self._loop: Callable[[], Any] = weakref.ref(runner.train_loop)
        self._worker_of = worker_of(runner)
        self._end_of_run: weakref.finalize | None = None
        self._has_ended = False

    def begin(self, runner: Any) -> None:
        """Start measuring: from now on, all time belongs to the training."""
        if not self._step_timer.install(runner.model, optimizers_of(runner)):
            runner.logger.info(
                'ThroughputMonitorHook: train_step is compiled, so a step is measured as a whole.'
            )
        self._counters.start()
        if self._sampler is not None:
            self._sampler.start()
        # No hook runs after a failure, so finalize when the runner is collected or Python exits.
        self._end_of_run = weakref.finalize(runner, self.abandon)
        _active.add(self)
        activate(self.timeline)
        timers[runner] = self._hook_timer
        self.timeline.start()

    def after_iteration(self, runner: Any, is_log_point: bool, joins: bool = False) -> None:
        """Take a window; call it at log points and at `look_at`, in a hook after a step.

        Args:
            runner: Runner of the training.
            is_log_point: Whether to log the window.
            joins: Whether a `SparseLoggerHook` writes a line now, and the scalars of the monitor
                with it. Defaults to False.
        """
        if is_log_point:
            self._log_window(runner, joins)
        else:
            self._gather(runner.iter + 1)
            self.report.window()
        self.look_at = self.timeline.number + MOST_UNSEEN
        self._suspect = self._stats.suspect / NANO

    def leave(self, runner: Any, is_complete: bool) -> None:
        """End the monitor, because the training is over or another one begins."""
        if is_complete:
            self._end('completed')
        else:
            self.abandon()
        timers.pop(runner, None)

    def abandon(self, error: BaseException | None = None) -> None:
        """End the monitor of a training that failed or was interrupted.

        Args:
            error: Error that is ending the training. Defaults to None: the error that ended the
                program, if any.
        """
        if error is not None:
            with contextlib.suppress(Exception):  # a failed device fails again
                self._step_timer.end()  # charge the time to the part of the step that failed
        error = error or _last_training_error()
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            self._end('interrupted')
        else:
            self._end('crashed', f'{type(error).__name__}: {error}')

    def _open(self, runner: Any, arguments: dict[str, Any]) -> None:
        """Begin an iteration, before its first hook; its batch has arrived."""
        self.data_seconds = self.timeline.begin()
        self._shape = shape = shape_of(arguments.get('data_batch'))
        self._is_new_shape = shape not in self._seen and len(self._seen) <= MOST_SHAPES
        if self._is_new_shape:
            self._seen.add(shape)

    def _begin_step(self, *args: Any) -> None:
        self._step_timer.begin()
        if self._event_timer is not None:
            self._event_timer.begin()
        if self._profile is not None and self.timeline.is_open:
            self._profile.begin(self.timeline.number)

    def _end_step(self, *args: Any) -> None:
        """End the training step, before the first hook after it is called."""
        self._step_timer.end()
        timeline = self.timeline
        if not timeline.is_open:
            return
        if self._batches > 1:
            self.data_seconds = timeline.spent(FIRST)
        if self._event_timer is not None:
            self._event_timer.end(timeline.number)
        if self._profile is not None:
            self._profile.end(timeline.number)

    def _settle(self, runner: Any, arguments: dict[str, Any]) -> None:
        """Read the counters after the last hook, and annotate an iteration that may be slow."""
        timeline = self.timeline
        if not timeline.is_open:  # a custom loop that does not call the hooks before a step
            timeline.start()
            return
        self._count()
        if timeline.log[-1] - timeline.opened > self._suspect:
            timeline.annotate(self._note(arguments))

    def _note(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the note of an iteration that may be slow; see `SlowIteration.note`."""
        note: dict[str, Any] = {} if self._shape is None else dict(shape=self._shape)
        if self.timeline.number <= self._warm:
            note['is_first'] = True
        elif self._is_new_shape:
            note['is_new_shape'] = True
        # Read from the loop each time, because hooks may replace its dataloader.
        deliveries = getattr(self._loop().dataloader, 'deliveries', None)
        batch = arguments.get('data_batch')
        if deliveries:  # of several batches, the one with the longest wait
            latest = itertools.islice(reversed(deliveries), self._batches)
            note['delivery'] = max(latest, key=lambda one: one.waited)
        elif batch is not None and self.data_seconds > LATE:
            worker = self._worker_of(arguments.get('batch_idx', 0))
            note.update(files=files_of(batch), worker=worker)
        return note

    def _count(self, *args: Any) -> None:
        """Read the counters for the open iteration."""
        dynamo = sys.modules.get('torch._dynamo.utils')
        # Number of frames that torch compiled in this process.
        frames = 0 if dynamo is None else dynamo.counters['frames'].get('ok', 0)
        self.timeline.set_facts((*self._counters.read(), frames))

    def _log_window(self, runner: Any, joins: bool) -> None:
        """Take a window at a log point, and log it where the losses are logged."""
        iteration = runner.iter + 1
        self._gather(iteration)
        window = self.report.window()
        # A collective: all processes take part, also those without a window.
        self._ranks.send(*self.report.data_and_step(window))
        if window is None or not self._writes:
            return
        line = self.report.line(window)
        if line is not None:
            runner.logger.info(line)
        scalars = self.report.scalars(window)
        if joins:  # in one call: W&B counts calls, whatever step they name
            # Not by `update_info`: the key would be in checkpoints, and stock would warn of it.
            runner.message_hub.runtime_info[ALONG] = scalars
        else:
            with charged_to(VISUALIZER):  # its time is not charged to the monitor
                GuardedScalars(runner, self._guard).add_scalars(scalars, step=iteration)

    def _gather(self, iteration: int) -> None:
        """Collect the results of the event timer, the ranks, the sampler and the profile."""
        if self._event_timer is not None:
            self._count_device(self._event_timer.take())
        self.report.update(ranks=self._ranks.take())
        loader = getattr(self._loop(), 'dataloader', None)
        cache = cache_of(getattr(loader, 'dataset', None))
        waiting = getattr(loader, 'waiting', None)
        if waiting is not None:
            self.report.update(loader=vars(waiting).copy())
        if cache is not None:
            self.report.update(cache=vars(cache.stats()))
        if self._sampler is not None:
            latest = self._sampler.latest()
            if latest:
                memory = dict(now=latest, peak=self._sampler.peak())
                self.report.update(memory=memory, pressure=self._sampler.pressure())
            for text in self._sampler.warnings():
                self._logger.warning(text)
                self.report.warn(text, iteration)
        if self._profile is not None:
            self._record_profile(self._profile)

    def _record_profile(self, profile: ProfileWindow) -> None:
        times = profile.take()
        if times is None:
            return
        self.report.stages(times)
        # An incomplete window is in the table that the end of the run logs right away.
        if self._writes and times['iterations'] >= times['asked']:
            self._logger.info(line_of(times))

    def _warn_of_empty_profile(self) -> None:
        timeline = self.timeline
        text = self._profile and self._profile.missed(timeline.before, timeline.number)
        if text:
            self._logger.warning(text)
            self.report.warn(text, timeline.number)

    def _count_device(self, iterations: list[tuple[int, dict[str, float]]]) -> None:
        for part in {part for _, parts in iterations for part in parts}:
            seconds = [parts[part] for _, parts in iterations if part in parts]
            self._device_parts.setdefault(part, LogHistogram()).add(np.array(seconds))
        self.report.update(
            device={
                part: dict(seconds=one.total, p50=one.quantile(0.5), count=one.count)
                for part, one in self._device_parts.items()
            }
        )

    def _end(self, status: str, error: str | None = None) -> None:
        """Stop measuring and write the last lines and the summary. No-op after the first call."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._end_of_run is not None:
            self._end_of_run.detach()
        _active.discard(self)
        deactivate(self.timeline)
        if self.timeline.is_open and self._loop() is not None:
            self.timeline.annotate(self._note({}))
        self.timeline.end()
        for stop in self._to_stop():
            try:
                stop()
            except Exception as problem:  # a failed device fails on each access
                self._logger.warning(f'ThroughputMonitorHook: {type(problem).__name__}: {problem}')
        summary = self.report.end(status, error)
        if self._writes and summary['iterations']:
            self._logger.info(to_text(summary))

    def _to_stop(self) -> Iterator[Callable[[], Any]]:
        yield self._step_timer.close
        yield self._counters.stop
        if self._profile is not None:
            yield self._profile.close
        yield lambda: self._gather(self.timeline.number)
        yield self._warn_of_empty_profile
        if self._sampler is not None:
            yield self._sampler.stop


def _last_training_error() -> BaseException | None:
    """Return the error that ended the program, if `Runner.train` raised it.

    In a notebook, `sys.last_value` may be an unrelated earlier error.
    """
    error = getattr(sys, 'last_value', None)
    frame = getattr(error, '__traceback__', None)
    while frame is not None:
        if frame.tb_frame.f_code is Runner.train.__code__:
            return error
        frame = frame.tb_next
    return None


def worker_of(runner: Any) -> Callable[[int], int | None]:
    """Return a function from the index of a batch to the worker of a stock loader that made it.

    The function returns None where the worker is unknown. Batches are assigned to workers in
    turn, starting with the first worker whenever the loader restarts.
    """
    loader = runner.train_dataloader
    workers, length = getattr(loader, 'num_workers', 0), length_of(loader)
    by_epoch, is_resumed = hasattr(runner.train_loop, 'run_epoch'), runner.iter > 0
    is_endless = isinstance(getattr(loader, 'sampler', None), InfiniteSampler)

    def worker(batch: int) -> int | None:
        is_known = by_epoch or (not is_resumed and (is_endless or batch < (length or 0)))
        return batch % workers if workers and is_known else None

    return worker
