"""Peak memory of one splat, measured in a fresh process."""

from __future__ import annotations

import sys

import pytest

from mmtempo.benchmarks.splat import measure, memory


@pytest.mark.skipif(sys.platform != 'linux', reason='needs /proc/self/status')
def test_missing_field_is_an_error() -> None:
    assert memory._kilobytes('VmHWM') >= memory._kilobytes('VmRSS') > 1000
    with pytest.raises(RuntimeError, match='expected a field VmNone, found none'):
        memory._kilobytes('VmNone')


def test_bag_needs_less_memory_than_cumsum() -> None:
    bag, classic = (measure.peak_rss('mono, 49 bins', name) for name in ('bag', 'cumsum'))
    assert bag is None or 1 < bag < classic
