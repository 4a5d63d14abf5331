"""Processes meet at the same iterations, about once a second, without further agreement."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mmtempo.checkpoint.signal_agreement import MOST, AskingSchedule


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Process:
    """One process of a training."""

    def __init__(self, first: int = 0) -> None:
        self.clock = Clock()
        self.schedule = AskingSchedule(first, clock=self.clock)


def train(processes: list[Process], paces: list[list[float]], first: int = 0) -> list[int]:
    """Iterations at which all ask; fails where they differ.

    Args:
        processes: All of a training.
        paces: Of each iteration, the seconds that each process takes.
        first: Iterations that were done before.
    """
    asked = []
    for step, seconds in enumerate(paces, first + 1):
        for process, pace in zip(processes, seconds):
            process.clock.now += pace
        due = [process.schedule.is_due(step) for process in processes]
        assert len(set(due)) == 1, f'they part at iteration {step}'
        if due[0]:
            asked.append(step)
            slowest = max(process.schedule.pace(step) for process in processes)
            for process in processes:
                process.clock.now = max(other.clock.now for other in processes)
            for process in processes:
                process.schedule.settle(step, slowest)
    return asked


@pytest.mark.parametrize(
    ('pace', 'expected'),
    [
        (3.0, list(range(1, 21))),  # longer than a second: each of them
        (1.0, list(range(1, 21))),
        (0.4, [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]),
        (0.1, [1, 3, 7, 15]),  # the next one would be 25
        (0.0, [1, 3, 7, 15]),
    ],
)
def test_iterations_to_ask_at(pace: float, expected: list[int]) -> None:
    assert train([Process()], [[pace]] * 20) == expected


@pytest.mark.parametrize('pace', [0.003, 0.05, 0.3, 0.9, 5.0])
def test_time_between_two_askings(pace: float) -> None:
    asked = train([Process()], [[pace]] * 1000)
    gaps = [(b - a) * pace for a, b in pairwise(asked)]
    assert max(gaps) <= max(1.0, pace) + 1e-6
    assert max(b - a for a, b in pairwise(asked)) <= MOST
    assert len(asked) <= 8 + 1000 / min(MOST, max(1, int(1 / pace)))  # and no more than needed


def test_processes_of_different_paces_agree() -> None:
    paces = [[0.01 * (1 + step % 7), 0.2 if step % 5 else 0.9] for step in range(300)]
    asked = train([Process(100), Process(100)], paces, first=100)
    assert asked[0] == 101
    assert max(b - a for a, b in pairwise(asked)) <= 5  # as the slower one needs it


def test_pace_that_drops_is_followed() -> None:
    """A host that is ahead of its device seems fast at first."""
    asked = train([Process()], [[0.001]] * 5 + [[3.0]] * 30)
    assert asked[:3] == [1, 3, 7]
    assert asked[3:] == list(range(8, 36))
