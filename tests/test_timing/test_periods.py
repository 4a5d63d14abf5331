"""Periodic stalls are found and named; random ones and bursts are no period."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.timing.periods import Period, find_period, usual_gap

KNOWN = {'num_workers': 8, 'log_interval': 50, 'val_interval': 5000, 'epoch_length': 1234}


def every(length: int, first: int = 0, count: int = 40) -> np.ndarray:
    return first + length * np.arange(count)


def found(iterations: object, known: dict | None = None) -> tuple[int, str] | None:
    period = find_period(iterations, KNOWN if known is None else known)  # type: ignore[arg-type]
    return period and (period.every, period.what)


@pytest.mark.parametrize('length', [4, 8])
@pytest.mark.parametrize('count', [6, 100])
def test_one_slow_worker_is_found(length: int, count: int) -> None:
    stalls = every(length, first=3, count=count)
    period = find_period(stalls, dict(KNOWN, num_workers=length))
    assert period == Period(length, 'num_workers', 3, count, count, 1.0)


@pytest.mark.parametrize('name', KNOWN)
def test_four_stalls_suffice_for_a_known_interval(name: str) -> None:
    assert found(every(KNOWN[name], first=17, count=4)) == (KNOWN[name], name)
    assert found(every(KNOWN[name], first=17, count=3)) is None


def test_longest_interval_that_explains_all_stalls_is_found() -> None:
    both = dict(log_interval=50, val_interval=100)
    assert found(every(50), both) == (50, 'log_interval')
    assert found(every(100), both) == (100, 'val_interval')


def test_other_periods_are_not_searched() -> None:
    assert found(every(7, count=12), dict(num_workers=4, log_interval=50)) is None
    assert found(every(8), dict(num_workers=4)) is None
    assert found(every(8), {}) is None


def test_text_names_the_interval() -> None:
    period = Period(8, 'num_workers', 3, 40, 42, 0.976)
    assert period.text == (
        'every 8th iteration = num_workers: 40 of 42 stalls; 98 % of these iterations stall'
    )


def test_text_of_an_interval_without_a_name() -> None:
    text = Period(30, '', 0, 40, 40, 1.0).text
    assert text == 'every 30th iteration: 40 of 40 stalls; 100 % of these iterations stall'


@pytest.mark.parametrize(
    ('iterations', 'gap'),
    [([], None), ([7], None), ([7, 7], None), ([40, 10, 70, 10, 75, 100], 30), ([5, 9], 4)],
)
def test_usual_gap_is_the_most_frequent_distance(iterations: list[int], gap: int | None) -> None:
    assert usual_gap(iterations) == gap


def test_period_is_found_despite_gaps_and_other_stalls() -> None:
    generator = np.random.default_rng(0)
    comb = every(8, first=5, count=500)
    comb = comb[generator.random(500) > 0.2]
    stalls = np.concatenate([comb, generator.choice(4000, 60)])
    generator.shuffle(stalls)
    period = find_period(stalls, KNOWN)
    assert period is not None
    assert (period.every, period.what, period.residue) == (8, 'num_workers', 5)
    assert len(comb) <= period.count <= len(comb) + 12
    assert period.of == len(set(stalls.tolist()))
    assert period.coverage == pytest.approx(0.8, abs=0.05)


def test_low_coverage_is_no_period() -> None:
    places = np.array([1, 4, 9, 20, 33, 41, 60, 87])
    assert found(50 * places, dict(log_interval=50)) is None


def test_low_match_is_no_period() -> None:
    others = np.random.default_rng(0).choice(np.arange(0, 1600, 2) + 1, 300, replace=False)
    stalls = np.concatenate([every(16, count=100), others])
    assert found(stalls, dict(num_workers=16)) is None
    assert found(stalls[:200], dict(num_workers=16)) == (16, 'num_workers')


def test_three_stalls_on_a_period_are_too_few() -> None:
    assert found([5000, 10000, 15000, 15011], dict(val_interval=5000)) is None


def test_shorter_interval_wins_only_with_enough_coverage() -> None:
    # An interval of 4 matches all stalls, but a third of its iterations have none.
    also = every(8, first=4, count=100)[np.arange(100) % 3 == 0]
    stalls = np.concatenate([every(8, count=100), also])
    assert found(stalls, dict(accumulation=4, num_workers=8)) == (8, 'num_workers')


def test_first_name_of_equal_intervals_is_used() -> None:
    assert found(every(8), dict(num_workers=8, log_interval=8)) == (8, 'num_workers')


def test_two_slow_workers_are_found() -> None:
    adjacent = np.concatenate([every(8, first=3), every(8, first=4)])
    assert find_period(adjacent, KNOWN) == Period(8, 'num_workers', 3, 80, 80, 1.0)
    apart = np.concatenate([every(8, first=3), every(8, first=6)])
    assert find_period(apart, KNOWN) == Period(8, 'num_workers', 3, 40, 80, 1.0)


def test_residue_may_shift_at_an_epoch() -> None:
    stalls = np.concatenate([every(8, first=5, count=150), every(8, first=1201, count=150)])
    assert found(stalls) == (8, 'num_workers')


@pytest.mark.parametrize('stalls', [range(100, 130), [], [5], [7, 7, 7, 7, 7], range(4)])
def test_burst_is_no_period(stalls: object) -> None:
    assert found(stalls) is None


def test_random_bursts_are_no_period() -> None:
    generator = np.random.default_rng(3)
    starts = generator.choice(5000, 12)
    assert found(np.concatenate([np.arange(start, start + 6) for start in starts])) is None


def test_burst_after_each_evaluation_counts_once() -> None:
    stalls = np.concatenate([every(500, first=start, count=8) for start in (1, 2, 3)])
    assert found(stalls, dict(val_interval=500)) == (500, 'val_interval')


def test_random_stalls_are_no_period() -> None:
    generator = np.random.default_rng(0)
    wrong = 0
    for _ in range(800):
        length = int(generator.choice([100, 300, 1000, 5000, 20000]))
        count = int(generator.choice([4, 5, 6, 8, 12, 20, 40]))
        stalls = generator.choice(length, count, replace=False)
        wrong += find_period(stalls, KNOWN) is not None
    assert wrong < 8


@pytest.mark.parametrize('density', [0.02, 0.1, 0.3])
def test_many_random_stalls_are_no_period(density: float) -> None:
    generator = np.random.default_rng(1)
    for _ in range(30):
        stalls = np.flatnonzero(generator.random(3000) < density)
        assert found(stalls, dict(num_workers=2, log_interval=4)) is None


def test_intervals_without_a_length_are_ignored() -> None:
    assert found(every(5), dict(num_workers=0, val_interval=None, accumulation=1)) is None
