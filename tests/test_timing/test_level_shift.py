"""A spell is what lies between a level that rises and the same level again."""

from __future__ import annotations

import pytest

from mmtempo.timing.level_shift import SlowSpan, SpanTracker


def test_a_spell_has_what_its_iterations_take_more() -> None:
    pace = SpanTracker(0.25)
    pace.add(1, 9.0)  # nothing has begun
    assert not pace.is_slow
    assert not pace.is_back(1.0)
    pace.begin(10, 1.0)
    for place in range(10, 15):
        pace.add(place, 3.0)
    pace.correct(0.5)
    assert pace.is_slow
    assert [pace.is_back(level) for level in (1.0, 1.25, 1.26)] == [True, True, False]
    for place in (15, 16):  # found out behind them
        pace.add(place, 1.1)
    pace.drop(15, [1.1, 1.1])
    assert pace.so_far() == SlowSpan(10, 14, 5, 1.0, pytest.approx(10.5), False)
    assert pace.end() == SlowSpan(10, 14, 5, 1.0, pytest.approx(10.5), True)
    assert not pace.is_slow


def test_the_next_one_begins_anew() -> None:
    pace = SpanTracker(0.25)
    pace.begin(3, 1.0)
    pace.add(3, 2.0)
    pace.end()
    pace.begin(8, 2.0)
    pace.add(8, 5.0)
    assert pace.end() == SlowSpan(8, 8, 1, 2.0, 3.0, True)
