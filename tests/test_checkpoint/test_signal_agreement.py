"""Processes exchange signals at the same iterations, about once a second."""

from __future__ import annotations

import signal
from itertools import pairwise

import pytest
import torch

from mmtempo.checkpoint import signal_agreement
from mmtempo.checkpoint.signal_agreement import MOST, AskingSchedule, SignalAgreement


class Clock:
    """Clock that the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Process:
    """Process of a training, with its clock and schedule."""

    def __init__(self, first: int = 0) -> None:
        self.clock = Clock()
        self.schedule = AskingSchedule(first, clock=self.clock)


def train(processes: list[Process], paces: list[list[float]], first: int = 0) -> list[int]:
    """Return the iterations of the exchanges; fail if they differ between processes.

    Args:
        processes: All processes of a training.
        paces: Seconds that each process takes, for each iteration.
        first: Number of iterations completed before. Defaults to 0.
    """
    exchanges = []
    for step, seconds in enumerate(paces, first + 1):
        for process, pace in zip(processes, seconds):
            process.clock.now += pace
        due = [process.schedule.is_due(step) for process in processes]
        assert len(set(due)) == 1, f'processes differ at iteration {step}'
        if due[0]:
            exchanges.append(step)
            slowest = max(process.schedule.pace(step) for process in processes)
            for process in processes:
                process.clock.now = max(other.clock.now for other in processes)
            for process in processes:
                process.schedule.settle(step, slowest)
    return exchanges


@pytest.mark.parametrize(
    ('pace', 'expected'),
    [
        (3.0, list(range(1, 21))),  # longer than a second: every iteration
        (1.0, list(range(1, 21))),
        (0.4, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]),
        (0.1, [1, 3, 7, 15]),  # the next one would be 25
        (0.0, [1, 3, 7, 15]),
    ],
)
def test_iterations_of_the_exchanges(pace: float, expected: list[int]) -> None:
    assert train([Process()], [[pace]] * 20) == expected


@pytest.mark.parametrize('pace', [0.003, 0.05, 0.3, 0.9, 5.0])
def test_time_between_two_exchanges(pace: float) -> None:
    exchanges = train([Process()], [[pace]] * 1000)
    gaps = [(b - a) * pace for a, b in pairwise(exchanges)]
    assert max(gaps) <= max(1.0, pace) + 1e-6
    assert max(b - a for a, b in pairwise(exchanges)) <= MOST
    assert len(exchanges) <= 8 + 1000 / min(MOST, max(1, int(1 / pace)))  # no more than needed


def test_processes_of_different_paces_agree() -> None:
    paces = [[0.01 * (1 + step % 7), 0.2 if step % 5 else 0.9] for step in range(300)]
    exchanges = train([Process(100), Process(100)], paces, first=100)
    assert exchanges[0] == 101
    assert max(b - a for a, b in pairwise(exchanges)) <= 5  # as the slower process needs it


def test_slower_pace_shortens_the_interval() -> None:
    """A host that queues work ahead of its device appears fast at first."""
    exchanges = train([Process()], [[0.001]] * 5 + [[3.0]] * 30)
    assert exchanges[:3] == [1, 3, 7]
    assert exchanges[3:] == list(range(8, 36))


@pytest.fixture
def other_values(monkeypatch: pytest.MonkeyPatch) -> list[list[float]]:
    """Return the values that a second process contributes to the next collectives."""
    values: list[list[float]] = []

    def all_reduce(tensor: torch.Tensor, op: str, group: object) -> None:
        assert op == 'max'
        tensor.copy_(torch.maximum(tensor, torch.tensor(values.pop(0), dtype=tensor.dtype)))

    monkeypatch.setattr(torch.distributed, 'get_backend', lambda: 'gloo')
    monkeypatch.setattr(signal_agreement, 'all_reduce', all_reduce)
    return values


def test_signal_of_another_process_is_returned_at_the_next_exchange(other_values: list) -> None:
    agreement = SignalAgreement(3)
    assert agreement.after_iteration(3, None) is None  # no exchange is due
    other_values += [[0, 5.0], [signal.SIGTERM, 5.0]]
    assert agreement.after_iteration(4, None) is None
    assert agreement.after_iteration(5, None) == signal.SIGTERM
    assert other_values == []


def test_evaluation_exchanges_signals_only_if_all_have_equally_many_batches(
    other_values: list,
) -> None:
    agreement = SignalAgreement(0)
    other_values += [[6, -6]]
    agreement.begin_evaluation(5)
    assert agreement.in_evaluation(1, signal.SIGINT) is None
    other_values += [[5, -5], [0, 0.1]]
    agreement.begin_evaluation(5)
    assert agreement.in_evaluation(1, signal.SIGINT) == signal.SIGINT
    assert other_values == []
