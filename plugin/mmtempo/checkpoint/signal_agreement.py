"""Makes a signal to one process known to all of them, at the same iteration."""

from __future__ import annotations

import signal

import torch
from mmengine.dist import all_reduce, barrier

from .asking import AskingSchedule


class SignalAgreement:
    """The iterations at which processes ask each other, and what they answer.

    Over a gloo group: a collective of the device would wait for the device.

    Args:
        iterations: Those that the training has done.
    """

    def __init__(self, iterations: int) -> None:
        is_gloo = torch.distributed.get_backend() == 'gloo'
        self._group = None if is_gloo else torch.distributed.new_group(backend='gloo')
        self._training = AskingSchedule(iterations)
        self._evaluation: AskingSchedule | None = None

    def after_iteration(
        self, iterations: int, requested: signal.Signals | None
    ) -> signal.Signals | None:
        """Return the signal that any process got, if this is an iteration to ask at."""
        if not self._training.is_due(iterations):
            return None
        return self.ask(iterations, requested)

    def ask(self, iterations: int, requested: signal.Signals | None) -> signal.Signals | None:
        """Return the signal that any process got; all processes must be here."""
        return self._ask(self._training, iterations, requested)

    def begin_evaluation(self, batches: int) -> None:
        """Ask during an evaluation only if all processes have equally many batches."""
        lengths = torch.tensor([batches, -batches])
        all_reduce(lengths, 'max', self._group)
        is_equal = int(lengths[0]) == -int(lengths[1])
        self._evaluation = AskingSchedule(0) if is_equal else None

    def in_evaluation(
        self, batches: int, requested: signal.Signals | None
    ) -> signal.Signals | None:
        """As `after_iteration`, after that many batches of an evaluation."""
        if self._evaluation is None or not self._evaluation.is_due(batches):
            return None
        return self._ask(self._evaluation, batches, requested)

    def wait(self) -> None:
        """Return when all processes are here."""
        barrier(self._group)

    def _ask(
        self, schedule: AskingSchedule, step: int, requested: signal.Signals | None
    ) -> signal.Signals | None:
        asked = torch.tensor([requested or 0, schedule.pace(step)], dtype=torch.float64)
        all_reduce(asked, 'max', self._group)
        number, pace = asked.tolist()
        schedule.settle(step, pace)
        return signal.Signals(int(number)) if number else None
