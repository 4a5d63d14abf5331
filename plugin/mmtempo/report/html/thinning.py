"""Long runs made short enough to draw: nothing here grows with the number of iterations."""

from __future__ import annotations

import statistics
from typing import Any

from mmtempo.report.format import number
from mmtempo.report.recovery import total

POINTS = 800  # windows that are drawn: about as many as a chart has pixels across
SLIVER = 0.2  # of the usual length of a window
MARKS = 600  # stalls that are marked in a chart
Line = dict[str, Any]


def thin_windows(windows: list[Line], points: int = POINTS) -> list[Line]:
    """Neighbouring windows of the same run as one, until there are few enough."""
    windows = _without_slivers(windows)
    group = -(-len(windows) // points)
    if group <= 1:
        return windows
    merged: list[Line] = []
    start = 0
    while start < len(windows):
        run = windows[start].get('run')
        stop = start + 1
        while stop < min(start + group, len(windows)) and windows[stop].get('run') == run:
            stop += 1
        merged.append(_merge(windows[start:stop]))
        start = stop
    return merged


def _without_slivers(windows: list[Line]) -> list[Line]:
    """The end of a run may leave a window of an iteration or two, which says little alone."""
    counts = [number(line.get('iterations')) or 0 for line in windows]
    least = SLIVER * statistics.median(counts) if counts else 0
    kept: list[Line] = []
    for line, count in zip(windows, counts):
        if count < least and kept and kept[-1].get('run') == line.get('run'):
            kept[-1] = _merge([kept[-1], line])
        else:
            kept.append(line)
    return kept


def _merge(windows: list[Line]) -> Line:
    iterations, seconds = total(windows, 'iterations'), total(windows, 'seconds')
    found = dict(windows[-1], iterations=iterations, seconds=seconds)
    if iterations and seconds:
        found['it_per_s'] = iterations / seconds
    calm = [line for line in windows if number(line.get('steady')) and line.get('iterations')]
    if calm:
        slowness = sum(line['iterations'] / line['steady'] for line in calm)
        found['steady'] = total(calm, 'iterations') / slowness
    phases: dict[str, float] = {}
    for line in windows:
        for name, value in (line.get('phases') or {}).items():
            phases[name] = phases.get(name, 0.0) + (number(value) or 0.0)
    if phases:
        found['phases'] = phases
    return found


def largest(stalls: list[Line], count: int = MARKS) -> list[Line]:
    """The stalls that cost most, in the order of their iterations."""
    if len(stalls) > count:
        stalls = sorted(stalls, key=lambda line: -(number(line.get('lost')) or 0))[:count]
    return sorted(stalls, key=lambda line: (line.get('run', 0), number(line.get('iter')) or 0))
