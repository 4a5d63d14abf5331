"""The course of the iteration time, and lasting changes in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mmtempo.timing.pace import GROUP, MOST, Pace, slowdown
from tests.testing.timelines import MeasuredRun

Course = Callable[[np.ndarray], np.ndarray]  # seconds of iterations, from their numbers


def noisy(course: Course, count: int = 5000, stalls: int = 50) -> Pace:
    """Return the pace of iterations with noise of 5 %, and stalls."""
    generator = np.random.default_rng(0)
    seconds = course(np.arange(count)) * generator.lognormal(0, 0.05, count)
    seconds[generator.choice(count, stalls, replace=False)] += 3.0
    pace = Pace()
    for start in range(0, count, 50):
        pace.add(seconds[start : start + 50].tolist())
    return pace


def test_a_long_run_keeps_few_values() -> None:
    pace = Pace()
    for million in range(1000):
        pace.add([0.1 if million < 250 else 0.2] * 1000)
        assert len(pace.values) < MOST
        assert len(pace._group) < GROUP
        assert len(pace._medians) * GROUP < pace.size
    assert MOST / 2 <= len(pace.values) < MOST
    assert pace.size * len(pace.values) <= 1_000_000 < pace.size * (len(pace.values) + 1)
    assert sum(pace.values) * pace.size == pytest.approx(175_000, rel=0.02)
    found = slowdown(pace.values, pace.size)
    assert found is not None
    assert abs(found.index - 250_000) <= pace.size
    assert found.lost == pytest.approx(75_000, rel=0.05)


def test_values_do_not_depend_on_how_iterations_are_added() -> None:
    seconds = np.random.default_rng(1).lognormal(0, 0.3, 3000).tolist()
    one, other = Pace(), Pace()
    one.add(seconds)
    for second in seconds:
        other.add([second])
    assert one.values == other.values
    assert one.values[0] == pytest.approx(
        np.median(np.reshape(seconds[: one.size], (-1, GROUP)), axis=1).mean()
    )


@pytest.mark.parametrize('at', [500, 2500, 4500])
@pytest.mark.parametrize('factor', [1.2, 3.0])
def test_step_is_found_where_it_is(at: int, factor: float) -> None:
    pace = noisy(lambda number: np.where(number < at, 0.1, 0.1 * factor))
    found = slowdown(pace.values, pace.size)
    assert found is not None
    assert not found.is_gradual
    assert abs(found.index - at) <= pace.size
    assert (found.old, found.new) == pytest.approx((0.1, 0.1 * factor), rel=0.02)
    assert found.lost == pytest.approx((5000 - at) * 0.1 * (factor - 1), rel=0.15)


def test_gradual_slowdown_has_no_step() -> None:
    pace = noisy(lambda number: 0.1 + 0.1 * number / 5000)
    found = slowdown(pace.values, pace.size)
    assert found is not None
    assert (found.is_gradual, found.index) == (True, 0)
    assert (found.old, found.new) == pytest.approx((0.1, 0.2), rel=0.05)
    assert found.lost == pytest.approx(250, rel=0.1)


@pytest.mark.parametrize(
    'course',
    [
        lambda number: np.full(len(number), 0.1),
        lambda number: np.where(number < 2500, 0.1, 0.108),
        lambda number: np.where(number < 2500, 0.2, 0.1),  # it becomes faster
        lambda number: np.where(number < 80, 0.5, 0.1),  # warm-up
        lambda number: np.where(number > 4920, 0.5, 0.1),  # too short to be lasting
        lambda number: np.where(number // 500 % 2, 0.2, 0.1),  # to and fro
        lambda number: np.where((number > 2000) & (number < 3000), 0.2, 0.1),  # not lasting
        lambda number: np.where(number % 8, 0.1, 1.0),  # a slow worker
        lambda number: 0.2 - 0.1 * number / 5000,
    ],
)
def test_no_lasting_slowdown(course: Course) -> None:
    pace = noisy(course)
    assert slowdown(pace.values, pace.size) is None


def test_noise_alone_is_no_slowdown() -> None:
    """Values that vary by 30 %, as on a shared machine."""
    generator = np.random.default_rng(0)
    found = [slowdown(generator.lognormal(0, 0.3, 60), 16) for _ in range(200)]
    assert sum(one is not None for one in found) <= 2


@pytest.mark.parametrize(
    ('values', 'is_found'),
    [
        ([], False),
        ([0.1] * 4 + [0.2] * 3, False),
        ([0.1] * 4 + [0.2] * 4, True),
        ([0.1] * 10 + [0.2] * 8 + [0.1, 0.2], True),  # 19 of 20 values are on their side
        ([0.1] * 10 + [0.2, 0.1, 0.2, 0.1, 0.2, 0.2, 0.1, 0.2, 0.2, 0.2], False),  # 17 of 20
        ([0.1 + 0.003 * number for number in range(20)], True),
        # The last values of a line are all above its first ones.
        ([0.1 + 0.003 * number * (number != 18) for number in range(20)], False),
    ],
)
def test_slowdown_needs_enough_clear_values(values: list[float], is_found: bool) -> None:
    assert (slowdown(values, 16) is not None) == is_found


def test_pace_of_a_run_excludes_evaluations_and_waits() -> None:
    run = MeasuredRun()
    for number in range(1, 321):
        run.go(data=2.0 if number > 160 else 0.0, evaluation=9.0 if number % 2 else 0.0)
    run.meter.take(is_last=True)
    pace = run.meter.summary({})['pace']
    assert (len(pace['values']), pace['size']) == (20, GROUP)
    assert pace['values'] == pytest.approx([0.09] * 20, rel=0.02)
