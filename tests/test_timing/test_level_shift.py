"""A slow span sums the excess of its iterations over the usual time."""

from __future__ import annotations

import pytest

from mmtempo.timing.level_shift import SlowSpan


def test_span_sums_the_excess_of_its_iterations() -> None:
    span = SlowSpan(first=10, usual=1.0)
    for index in range(10, 15):
        span.add(index, 3.0)
    span.add(20, 1.5)
    assert span == SlowSpan(10, 1.0, last=20, iterations=6, lost=pytest.approx(10.5))
