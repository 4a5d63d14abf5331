"""Measures one training, from its first iteration to its end, however that comes."""

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

from .hook_timer import VISUALIZER, HookTimer
from .options import MonitorOptions
from .profile_window import ProfileWindow, line_of
from .rank_times import RankTimes
from .run_recorder import RunRecorder
from .run_settings import files_of, length_of, setting_of, shape_of
from .step_timer import StepTimer

# Iterations that may be slow because they are the first ones.
WARM_UP = 5
# Iterations after which the meter looks, if nobody logs. The timeline keeps 1024; of those the
# meter may want to see again the last 384.
MOST_UNSEEN = 600
FACTS = (*IterationCounters.NAMES, 'recompiles')
MOST_SHAPES = 256
# Iterations between two reads of what counts, which take longer than anything else here; those
# that may turn out to be slow read it as well.
COUNTED = 8
LATE = 0.001  # seconds of waiting from which on it is worth to find out what a batch was made of


# Of this process; as long as they go on.
_going_on: weakref.WeakSet[TrainingMonitor] = weakref.WeakSet()


def end_monitored(error: BaseException) -> None:
    """What trains in this process has ended with an error, and says so in its files."""
    for monitor in list(_going_on):
        with contextlib.suppress(Exception):  # that error is what counts
            monitor.abandon(error)


class TrainingMonitor:
    """Marks what a runner does in its training, and writes down what became of it.

    Args:
        runner: Of the training.
        options: As they were asked for.
    """

    clock = staticmethod(time.perf_counter_ns)

    def __init__(self, runner: Any, options: MonitorOptions) -> None:
        device = next(runner.model.parameters(), torch.empty(0)).device
        self._counters = IterationCounters()
        self.timeline = Timeline('data', len(FACTS), clock=self.clock, before=runner.iter)
        self._device_clock = EventTimer.of(device)
        self._step = StepTimer(
            self.timeline, None if self._device_clock is None else self._device_clock.mark
        )
        self._profile = ProfileWindow.of(options.stage_profile, runner.model, device, runner.iter)
        self._batches = getattr(runner.train_loop, 'batches_per_iteration', 1)
        # Else the watch itself is called, which spares an iteration two calls.
        is_more = self._device_clock is not None or self._profile is not None or self._batches > 1
        self._marks = HookTimer(
            self.timeline,
            opening=dict(
                before_train_iter=self._open,
                after_train_iter=self._end_step if is_more else self._step.end,
            ),
            closing=dict(
                before_train_iter=self._begin_step if is_more else self._step.begin,
                after_train_iter=self._settle,
                after_train_epoch=self._count,
                after_val=self._count,
            ),
        )
        self._watch: MachineSampler | None = None
        if options.watch_interval:
            self._watch = MachineSampler(options.watch_interval, readings=MachineReadings(device))
        self._ranks, self._writes = RankTimes(), get_rank() == 0
        self._logger = runner.logger
        self._guard = WriteGuard('scalars of the monitor', runner.logger.error)
        self._meter = IterationStats(
            self.timeline,
            FACTS,
            self._marks.categories,
            options.stall_factor,
            machine=None if self._watch is None else self._watch.between,
            kinds_by=STEP,
        )
        self.report = RunRecorder(
            setting_of(runner),
            self._meter,
            RunFiles(runner.work_dir, runner.logger.error) if self._writes else None,
            runner.iter,
        )
        # What the open iteration has waited for its batch; of several, for all behind its step.
        self.data_seconds = 0.0
        self._warm = runner.iter + WARM_UP
        self._seen: set[tuple | None] = {None}  # shapes of inputs
        self._says: dict[tuple | None, dict[str, Any]] = {}  # by shape what notes say of it
        self._of_shape: dict[str, Any] = {}  # and what that of the open iteration says
        self._suspect = 0.0  # nanoseconds from which on an iteration may turn out to be slow
        self.look_at = runner.iter + MOST_UNSEEN  # the number of the iteration
        self._device_parts: dict[str, LogHistogram] = {}
        # It knows its runner, which nothing here may keep.
        self._loop: Callable[[], Any] = weakref.ref(runner.train_loop)
        self._worker_of = worker_of(runner)
        self._end_of_run: weakref.finalize | None = None
        self._has_ended = False

    def begin(self, runner: Any) -> None:
        """From now on, all time belongs to the training."""
        if not self._step.install(runner.model, optimizers_of(runner)):
            runner.logger.info(
                'ThroughputMonitorHook: train_step is compiled, so its parts are not told apart.'
            )
        self._counters.start()
        if self._watch is not None:
            self._watch.start()
        # When the run has failed nobody tells: then it goes, or Python ends.
        self._end_of_run = weakref.finalize(runner, self.abandon)
        _going_on.add(self)
        activate(self.timeline)
        self._marks.join(runner)
        self.timeline.start()

    def after_iteration(self, runner: Any, is_log_point: bool, joins: bool = False) -> None:
        """At log points, and at `look_at`, from within the hooks behind a step.

        Args:
            runner: Of the training.
            is_log_point: Whether to tell what was found.
            joins: Whether a `SparseLoggerHook` writes a line now, which takes ours along.
                Defaults to False.
        """
        if is_log_point:
            self._tell(runner, joins)
        else:
            self._gather(runner.iter + 1)
            self.report.flush()
        self.look_at = self.timeline.number + MOST_UNSEEN
        self._suspect = self._meter.suspect / NANO

    def leave(self, runner: Any, is_complete: bool) -> None:
        """The training is over, or another one begins."""
        if is_complete:
            self._end('completed')
        else:
            self.abandon()
        self._marks.leave(runner)

    def abandon(self, error: BaseException | None = None) -> None:
        """The training was not completed: it has failed, or somebody has ended it.

        Args:
            error: What has ended it, just now. Defaults to None: what Python says has.
        """
        if error is not None:
            with contextlib.suppress(Exception):  # a device that has failed does so again
                self._step.end()  # if it was within one, all up to now is the part that has failed
        error = error or _error_of_a_training()
        if error is None or isinstance(error, (KeyboardInterrupt, SystemExit)):
            self._end('interrupted')
        else:
            self._end('crashed', f'{type(error).__name__}: {error}')

    def _open(self, runner: Any, arguments: dict[str, Any]) -> None:
        """Before the first hook of an iteration: its batch is here, the one before has ended."""
        self.data_seconds = self.timeline.begin()
        shape = shape_of(arguments.get('data_batch'))
        says = self._says.get(shape)
        self._of_shape = self._learn(shape) if says is None else says

    def _learn(self, shape: tuple | None) -> dict[str, Any]:
        """What to say of inputs of a shape that was not seen before, or in a first iteration."""
        says = {} if shape is None else dict(shape=shape)
        is_new = shape not in self._seen and len(self._seen) <= MOST_SHAPES
        if is_new:
            self._seen.add(shape)
        if self.timeline.number <= self._warm:
            return dict(says, is_first=True)
        if is_new:
            return dict(says, is_new_shape=True)
        if shape in self._seen:
            self._says[shape] = says
        return says

    def _begin_step(self, *args: Any) -> None:
        self._step.begin()
        if self._device_clock is not None:
            self._device_clock.begin()
        if self._profile is not None and self.timeline.is_open:
            self._profile.begin(self.timeline.number)

    def _end_step(self, *args: Any) -> None:
        """The training step is over, and the first hook behind it not yet called."""
        self._step.end()
        timeline = self.timeline
        if not timeline.is_open:
            return
        if self._batches > 1:
            self.data_seconds = timeline.spent(FIRST)
        if self._device_clock is not None:
            self._device_clock.end(timeline.number)
        if self._profile is not None:
            self._profile.end(timeline.number)

    def _settle(self, runner: Any, arguments: dict[str, Any]) -> None:
        """The last hook behind a step has been called."""
        timeline = self.timeline
        may_be_slow = timeline.log[-1] - timeline.opened > self._suspect
        if may_be_slow or not timeline.number % COUNTED:
            if not timeline.is_open:  # a loop of somebody's own, without the hooks before a step
                timeline.start()
                return
            self._count()
            if may_be_slow:
                timeline.annotate(self._explained(arguments))

    def _explained(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What there is to say of an iteration that may be slow: `Slow.note`."""
        note = dict(self._of_shape)
        # The loop's, as it is now: hooks may build another one in the middle of a training.
        deliveries = getattr(self._loop().dataloader, 'deliveries', None)
        batch = arguments.get('data_batch')
        if deliveries:  # of several in one iteration, the one that was waited for longest
            latest = itertools.islice(reversed(deliveries), self._batches)
            note['delivery'] = max(latest, key=lambda one: one.waited)
        elif batch is not None and self.data_seconds > LATE:
            worker = self._worker_of(arguments.get('batch_idx', 0))
            note.update(files=files_of(batch), worker=worker)
        return note

    def _count(self, *args: Any) -> None:
        """Read what counts, for the open iteration."""
        dynamo = sys.modules.get('torch._dynamo.utils')
        # How often torch has compiled something in this process.
        frames = 0 if dynamo is None else dynamo.counters['frames'].get('ok', 0)
        self.timeline.set_facts((*self._counters.read(), frames))

    def _tell(self, runner: Any, joins: bool) -> None:
        """A log point: what was found since the last one goes to where the losses go."""
        iteration = runner.iter + 1
        self._gather(iteration)
        window = self.report.window()
        # All processes have to, whatever each has found.
        self._ranks.send(*self.report.data_and_step(window))
        if window is None or not self._writes:
            return
        line = self.report.line(window)
        if line is not None:
            runner.logger.info(line)
        scalars = self.report.scalars(window)
        if joins:  # in one call: W&B counts calls, whatever step they name
            # Not by update_info: checkpoints would name the key, and stock complain of it.
            runner.message_hub.runtime_info[ALONG] = scalars
        else:
            with charged_to(VISUALIZER):  # a slow one is not the monitor's doing
                GuardedScalars(runner, self._guard).add_scalars(scalars, step=iteration)

    def _gather(self, iteration: int) -> None:
        """What watches beside the timeline have found."""
        if self._device_clock is not None:
            self._count_device(self._device_clock.take())
        self.report.update(ranks=self._ranks.take())
        if self._watch is not None:
            latest = self._watch.latest()
            if latest:
                self.report.update(memory=dict(now=latest, peak=self._watch.peak()))
            for text in self._watch.warnings():
                self._logger.warning(text)
                self.report.warn(text, iteration)
        if self._profile is not None:
            self._tell_stages(self._profile)

    def _tell_stages(self, profile: ProfileWindow) -> None:
        found = profile.take()
        if found is None:
            return
        self.report.stages(found)
        # Of a run that has ended before, the summary shows them right away.
        if self._writes and found['iterations'] >= found['asked']:
            self._logger.info(line_of(found))

    def _warn_of_no_stages(self) -> None:
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
        """Stop watching, and write what is left; once."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._end_of_run is not None:
            self._end_of_run.detach()
        _going_on.discard(self)
        deactivate(self.timeline)
        if self.timeline.is_open and self._loop() is not None:
            self.timeline.annotate(self._explained({}))
        self.timeline.end()
        for stop in self._to_stop():
            try:
                stop()
            except Exception as problem:  # a device that has failed does so whoever asks it
                self._logger.warning(f'ThroughputMonitorHook: {type(problem).__name__}: {problem}')
        summary = self.report.end(status, error)
        if self._writes and summary['iterations']:
            self._logger.info(self.report.text(summary))

    def _to_stop(self) -> Iterator[Callable[[], Any]]:
        yield self._step.close
        yield self._counters.stop
        if self._profile is not None:
            yield self._profile.close
        yield lambda: self._gather(self.timeline.number)
        yield self._warn_of_no_stages
        if self._watch is not None:
            yield self._watch.stop


def _error_of_a_training() -> BaseException | None:
    """What Python says has ended the program, if it came out of a Runner: in a notebook, what it
    says may be any other error of before."""
    error = getattr(sys, 'last_value', None)
    frame = getattr(error, '__traceback__', None)
    while frame is not None:
        if frame.tb_frame.f_code is Runner.train.__code__:
            return error
        frame = frame.tb_next
    return None


def worker_of(runner: Any) -> Callable[[int], int | None]:
    """Which worker of a stock loader has made a batch, by its number; None where that is not known.

    Batches go around among workers, from the first one on whenever the loader begins anew.
    """
    loader = runner.train_dataloader
    workers, length = getattr(loader, 'num_workers', 0), length_of(loader)
    by_epoch, is_resumed = hasattr(runner.train_loop, 'run_epoch'), runner.iter > 0
    is_endless = isinstance(getattr(loader, 'sampler', None), InfiniteSampler)

    def worker(batch: int) -> int | None:
        knows = by_epoch or (not is_resumed and (is_endless or batch < (length or 0)))
        return batch % workers if workers and knows else None

    return worker
