"""Share a signal that one process received, so that all processes stop at the same iteration."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import torch
from mmengine.dist import all_reduce, barrier

MOST = 100  # iterations: a training that slows down suddenly must not delay the next exchange


class AskingSchedule:
    """Iterations after which all processes exchange their signals, about every `seconds`.

    Each process measures its own pace, and each exchange returns the slowest one. All processes
    compute the next iteration from that value, so no other synchronization is needed::

        iteration     1  2  3  4  5  6  7  8 ... 15 ...
        exchange      *     *           *         *       fast: it doubles, up to 1 s or MOST
        exchange      *  *  *  *  *  *  *  *      *       an iteration takes more than 1 s

    Args:
        step: Number of completed iterations at the start.
        seconds: Time between two exchanges, in seconds. Defaults to 1.0.
        clock: Function that returns the time in seconds, `time.perf_counter` unless for a test.
    """

    def __init__(
        self, step: int, seconds: float = 1.0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds, self._clock = seconds, clock
        self._asked, self._at = step, clock()
        self._interval = 1  # the pace is unknown

    def is_due(self, step: int) -> bool:
        """Return whether all processes exchange their signals after this iteration."""
        return step >= self._asked + self._interval

    def pace(self, step: int) -> float:
        """Return the seconds per iteration of this process since the last exchange."""
        return (self._clock() - self._at) / max(1, step - self._asked)

    def settle(self, step: int, pace: float) -> None:
        """Choose the iteration of the next exchange.

        A host that queues work ahead of its device appears fast in its first iterations, so the
        interval at most doubles each time.

        Args:
            step: Number of completed iterations at this exchange.
            pace: Seconds per iteration of the slowest process.
        """
        within = int(self._seconds / pace) if pace > self._seconds / MOST else MOST
        self._interval = max(1, min(within, 2 * self._interval, MOST))
        self._asked, self._at = step, self._clock()


class SignalAgreement:
    """Exchange of received signals between the processes of a training.

    Uses a gloo group: a collective on the device would wait for the device.

    Args:
        iterations: Number of iterations that the training has completed.
    """

    def __init__(self, iterations: int) -> None:
        is_gloo = torch.distributed.get_backend() == 'gloo'
        self._group = None if is_gloo else torch.distributed.new_group(backend='gloo')
        self._training = AskingSchedule(iterations)
        self._evaluation: AskingSchedule | None = None

    def after_iteration(
        self, iterations: int, requested: signal.Signals | None
    ) -> signal.Signals | None:
        """Return the signal that any process received, if an exchange is due now.

        Args:
            iterations: Number of completed iterations.
            requested: Signal that this process received.
        """
        if not self._training.is_due(iterations):
            return None
        return self.ask(iterations, requested)

    def ask(self, iterations: int, requested: signal.Signals | None) -> signal.Signals | None:
        """Return the signal that any process received; all processes must call this."""
        return self._ask(self._training, iterations, requested)

    def begin_evaluation(self, batches: int) -> None:
        """Prepare exchanges in an evaluation; there are none if the numbers of batches differ.

        Args:
            batches: Number of batches that this process evaluates.
        """
        lengths = torch.tensor([batches, -batches])
        all_reduce(lengths, 'max', self._group)
        is_equal = int(lengths[0]) == -int(lengths[1])
        self._evaluation = AskingSchedule(0) if is_equal else None

    def in_evaluation(
        self, batches: int, requested: signal.Signals | None
    ) -> signal.Signals | None:
        """Return the signal that any process received, if an exchange is due now.

        Args:
            batches: Number of batches that have been evaluated.
            requested: Signal that this process received.
        """
        if self._evaluation is None or not self._evaluation.is_due(batches):
            return None
        return self._ask(self._evaluation, batches, requested)

    def wait(self) -> None:
        """Wait until all processes have called this."""
        barrier(self._group)

    def _ask(
        self, schedule: AskingSchedule, step: int, requested: signal.Signals | None
    ) -> signal.Signals | None:
        values = torch.tensor([requested or 0, schedule.pace(step)], dtype=torch.float64)
        all_reduce(values, 'max', self._group)
        number, pace = values.tolist()
        schedule.settle(step, pace)
        return signal.Signals(int(number)) if number else None
