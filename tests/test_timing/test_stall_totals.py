"""Sums of the lost time by cause."""

from __future__ import annotations

import pytest

from mmtempo.timing.stall_totals import MOST_CAUSES, StallTotals


def record(number: int, lost: float, category: str = 'hook', **parts: float) -> dict:
    named = [dict(category=category, cause=cause, seconds=parts[cause]) for cause in parts]
    return dict(iter=number, lost=lost, parts=named, evidence={})


def test_each_cause_gets_its_seconds() -> None:
    lost = StallTotals()
    lost.add(record(3, 1.0, a=0.7, b=0.3))
    lost.add(record(5, 2.0, b=2.0))
    assert (lost.seconds, lost.count) == (3.0, 2)
    assert lost.by_cause == dict(
        a=dict(seconds=0.7, count=1, category='hook'),
        b=dict(seconds=pytest.approx(2.3), count=2, category='hook'),
    )


def test_smaller_part_has_its_own_period() -> None:
    """A save at every second evaluation."""
    lost = StallTotals()
    for number in range(10, 210, 10):
        parts = dict(evaluation=1.0, save=0.5) if number % 20 == 0 else dict(evaluation=1.0)
        lost.add(record(number, sum(parts.values()), **parts))
    periods = lost.periods(dict(val_interval=10, checkpoint_interval=20))
    assert {(one['cause'], one['every'], one['what']) for one in periods} == {
        ('evaluation', 10, 'val_interval'),
        ('save', 20, 'checkpoint_interval'),
    }


@pytest.mark.parametrize(('category', 'every'), [('hook', 30), ('data', None), ('gc', None)])
def test_hook_may_have_an_interval_that_is_in_no_setting(category: str, every: int | None) -> None:
    lost = StallTotals()
    for number in (*range(30, 1200, 30), 77):
        lost.add(record(number, 1.0, category, EMA=1.0))
    found = lost.periods(dict(log_interval=50))
    assert [(one['every'], one['what']) for one in found] == ([(every, '')] if every else [])
    assert [one['text'].partition(': 39')[0] for one in found] == (
        ['EMA: every 30th iteration'] if every else []
    )


def test_known_interval_of_a_hook_keeps_its_name() -> None:
    lost = StallTotals()
    for number in range(50, 1200, 50):
        lost.add(record(number, 1.0, EMA=1.0))
    (found,) = lost.periods(dict(log_interval=50))
    assert (found['every'], found['what']) == (50, 'log_interval')


def test_spans_count_all_iterations_and_have_no_period() -> None:
    lost = StallTotals()
    for number in range(100, 2100, 100):
        lost.add(dict(record(number, 1.0, a=1.0), iterations=15))
    assert lost.count == lost.by_cause['a']['count'] == 300
    assert lost.periods(dict(log_interval=100)) == []


def test_number_of_causes_is_limited() -> None:
    lost = StallTotals()
    for number in range(3 * MOST_CAUSES):
        lost.add(record(number, 1.0, **{f'cause {number}': 1.0}))
    assert len(lost.by_cause) == MOST_CAUSES + 1
    assert lost.by_cause['other causes']['count'] == 2 * MOST_CAUSES
