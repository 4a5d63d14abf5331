"""All charts of the page, with as many points as a screen can show."""

from __future__ import annotations

import itertools

from mmtempo.report.format import number, total
from mmtempo.report.run_log import RunLog

from .chart import Chart, Line
from .colors import phase_colors
from .phase_charts import memory, recent, shares, shares_over_time
from .speed_charts import histogram, lost_by_cause, throughput

POINTS = 800  # windows that are drawn: about one for each pixel of a chart's width
SLIVER = 0.5  # of the longest window of a run: shorter windows are merged


def charts(log: RunLog, colors: dict[str, str]) -> list[Chart]:
    """Return the charts that the data of a run suffices for."""
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
    """Merge neighboring windows of the same run until there are few enough to draw."""
    windows = _without_slivers(windows)
    group = -(-len(windows) // points)
    if group <= 1:
        return windows
    return [
        _merge(lines[start : start + group])
        for lines in _by_run(windows)
        for start in range(0, len(lines), group)
    ]


def _by_run(windows: list[Line]) -> list[list[Line]]:
    return [list(group) for _, group in itertools.groupby(windows, lambda line: line.get('run'))]


def _without_slivers(windows: list[Line]) -> list[Line]:
    """Merge short windows, as at the end of a run or an epoch, into a neighbor of their run.

    One that has few iterations besides an evaluation or a save would be drawn as a plunge.
    """
    kept: list[Line] = []
    for lines in _by_run(windows):
        least = SLIVER * max(map(_length, lines))
        kept.append(lines[0])
        for line in lines[1:]:
            if min(_length(kept[-1]), _length(line)) >= least:
                kept.append(line)
            else:
                # The usual time of few iterations is not known: the longer window determines it.
                steady = max(kept[-1], line, key=_length).get('steady')
                kept[-1] = dict(_merge([kept[-1], line]), steady=steady)
    return kept


def _length(line: Line) -> float:
    return number(line.get('iterations')) or 0.0


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
