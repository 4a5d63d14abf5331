"""All charts of the page, with as many points as a screen can show."""

from __future__ import annotations

import statistics

from mmtempo.report.format import number, total
from mmtempo.report.run_log import RunLog

from .chart import Chart, Line
from .colors import phase_colors
from .phase_charts import memory, recent, shares, shares_over_time
from .speed_charts import histogram, lost_by_cause, throughput

POINTS = 800  # windows that are drawn: about one for each pixel of a chart's width
SLIVER = 0.2  # of the median length of a window: shorter windows are merged


def charts(log: RunLog, colors: dict[str, str]) -> list[Chart]:
    """Return the charts that the data of a run suffices for.

    Args:
        log: The run.
        colors: Colors of the phases.
    """
    windows, summary = thin_windows(log.windows), log.summary
    candidates = [
        throughput(
            windows,
            log.stalls or summary.get('stalls') or [],
            summary.get('changes') or [],
            whole='as logged' if log.kind == 'stock' else 'end to end',
        ),
        shares(summary.get('phases') or {}, colors),
        shares_over_time(windows, colors),
        lost_by_cause(summary),
        histogram(summary),
        recent(summary.get('ring') or {}, colors),
        memory(windows),
    ]
    drawn = [chart for chart in candidates if chart is not None]
    for chart in drawn if log.kind == 'stock' else ():
        chart.note = 'From stock logs; their limits are listed above.'
    return drawn


def colors_of(log: RunLog) -> dict[str, str]:
    """Return a color for each phase that occurs in a run; large phases choose first."""
    phases = log.summary.get('phases') or {}
    names = dict.fromkeys(
        sorted(phases, key=lambda name: -(number(phases[name].get('share')) or 0))
    )
    names.update(dict.fromkeys((log.summary.get('ring') or {}).get('phases') or []))
    for line in log.windows:
        names.update(dict.fromkeys(line.get('phases') or {}))
    return phase_colors([*names, 'other'])


def thin_windows(windows: list[Line], points: int = POINTS) -> list[Line]:
    """Merge neighboring windows of the same run until there are few enough to draw.

    Args:
        windows: Lines of log windows.
        points: Target number of windows. Defaults to 800.
    """
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
    """Merge short windows, as at the end of a run, into the previous one: they are noisy."""
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
    """Merge windows into one: sums of time and iterations, the other values of the last."""
    iterations, seconds = total(windows, 'iterations'), total(windows, 'seconds')
    merged = dict(windows[-1], iterations=iterations, seconds=seconds)
    if iterations and seconds:
        merged['it_per_s'] = iterations / seconds
    calm = [line for line in windows if number(line.get('steady')) and line.get('iterations')]
    if calm:
        slowness = sum(line['iterations'] / line['steady'] for line in calm)
        merged['steady'] = total(calm, 'iterations') / slowness
    phases: dict[str, float] = {}
    for line in windows:
        for name, value in (line.get('phases') or {}).items():
            phases[name] = phases.get(name, 0.0) + (number(value) or 0.0)
    if phases:
        merged['phases'] = phases
    return merged
