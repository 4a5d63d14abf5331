"""A slow span lasts from a rise of the level until the usual level returns."""

from __future__ import annotations

import pytest

from mmtempo.timing.level_shift import SlowSpan, SpanTracker


def test_span_sums_the_excess_of_its_iterations() -> None:
    span = SpanTracker(0.25)
    span.add(1, 9.0)  # no span is open
    assert not span.is_slow
    assert not span.is_back(1.0)
    span.begin(10, 1.0)
    for index in range(10, 15):
        span.add(index, 3.0)
    span.correct(0.5)
    assert span.is_slow
    assert [span.is_back(level) for level in (1.0, 1.25, 1.26)] == [True, True, False]
    for index in (15, 16):  # of the next level, found later
        span.add(index, 1.1)
    span.drop(15, [1.1, 1.1])
    assert span.so_far() == SlowSpan(10, 14, 5, 1.0, pytest.approx(10.5), False)
    assert span.end() == SlowSpan(10, 14, 5, 1.0, pytest.approx(10.5), True)
    assert not span.is_slow


def test_next_span_starts_from_zero() -> None:
    span = SpanTracker(0.25)
    span.begin(3, 1.0)
    span.add(3, 2.0)
    span.end()
    span.begin(8, 2.0)
    span.add(8, 5.0)
    assert span.end() == SlowSpan(8, 8, 1, 2.0, 3.0, True)
