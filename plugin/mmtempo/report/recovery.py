"""Rebuild a summary from log lines alone, for a run that was killed without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mmtempo.timing.statistics import KEEP
from mmtempo.timing.window_means import WindowMeans

from .format import number

Line = dict[str, Any]


def recovered_summary(
    runs: list[Line],
    windows: list[Line],
    stalls: list[Line],
    warnings: list[Line],
    stages: list[Line],
    changes: Sequence[Line] = (),
) -> Line:
    """Return the content of `tempo_summary.json` of the last run, as far as its lines have it.

    Args:
        runs: Lines that open a run.
        windows: Lines of log windows.
        stalls: Lines of slow iterations.
        warnings: Lines of warnings.
        stages: Lines of forward profiles.
        changes: Lines of changes of the usual iteration time. Defaults to ().
    """
    last = max(0, len(runs) - 1)
    run = runs[-1] if runs else {}
    windows, stalls, warnings, stages, changes = (
        [line for line in lines if line.get('run', 0) == last]
        for lines in (windows, stalls, warnings, stages, changes)
    )
    summary = dict(
        version=run.get('version', 1),
        started=run.get('time'),
        ended=max(
            (line['time'] for line in windows + stalls if number(line.get('time'))), default=None
        ),
        first_iter=run.get('iter'),
        last_iter=max((line['iter'] for line in windows if number(line.get('iter'))), default=None),
        max_iters=run.get('max_iters'),
        machine=run.get('machine'),
        setting=run.get('setting'),
        warnings=[line['text'] for line in warnings if line.get('text')],
        stages=stages[-1] if stages else None,
        changes=changes or None,
        stalls=sorted(stalls, key=lambda line: -(number(line.get('lost')) or 0))[:KEEP],
        **_speed(windows),
    )
    if windows:
        summary.update(phases=phase_totals(windows), memory=memory_of(windows))
        summary['lost'] = _lost(windows, stalls)
        means = WindowMeans()
        for line in windows:
            means.add(line)
        summary.update(means.figures())
    return {key: value for key, value in summary.items() if value is not None}


def _speed(windows: list[Line]) -> Line:
    iterations, seconds = total(windows, 'iterations'), total(windows, 'seconds')
    if not iterations or not seconds:
        return {}
    speed: Line = dict(iterations=int(iterations), seconds=seconds, it_per_s=iterations / seconds)
    calm = [line for line in windows if number(line.get('steady'))]
    if calm:
        count = total(calm, 'iterations')
        speed['steady'] = count / sum(line['iterations'] / line['steady'] for line in calm)
    counted = [line for line in windows if number(line.get('samples_per_s'))]
    if counted:
        samples = sum(line['samples_per_s'] * line['seconds'] for line in counted)
        speed['samples_per_s'] = samples / total(counted, 'seconds')
        if 'steady' in speed:
            per_iteration = samples / total(counted, 'iterations')
            speed['samples_per_s_steady'] = per_iteration * speed['steady']
    for key in ('p50', 'p95', 'p99', 'cv'):
        speed[key] = _median(windows, key)
    return speed


def total(lines: Iterable[Line], key: str) -> float:
    """Return the sum of a key over lines; lines without a number count as 0."""
    return sum(number(line.get(key)) or 0 for line in lines)


def _median(windows: list[Line], key: str) -> float | None:
    """Return the median over windows, weighted by their iterations."""
    pairs = sorted(
        (line[key], number(line.get('iterations')) or 0)
        for line in windows
        if number(line.get(key)) is not None
    )
    half = sum(weight for _, weight in pairs) / 2
    for value, weight in pairs:
        half -= weight
        if half <= 0:
            return value
    return None


def phase_totals(windows: list[Line]) -> dict[str, Line]:
    """Return seconds and share of each phase over these windows."""
    seconds: dict[str, float] = {}
    for line in windows:
        for name, value in (line.get('phases') or {}).items():
            seconds[name] = seconds.get(name, 0.0) + (number(value) or 0.0)
    whole = sum(seconds.values()) or 1.0
    return {name: dict(seconds=value, share=value / whole) for name, value in seconds.items()}


def memory_of(windows: list[Line]) -> Line | None:
    """Return the last memory sample and the extremes of all, None without samples."""
    samples = [line['memory'] for line in windows if line.get('memory')]
    if not samples:
        return None
    return dict(now=samples[-1], peak=_extremes(samples))


def _extremes(samples: list[Line]) -> Line:
    """Return the largest value of each key, of free memory the smallest."""
    peak: Line = {}
    for key in {key: None for sample in samples for key in sample}:
        values = [sample[key] for sample in samples if sample.get(key) is not None]
        if values and all(isinstance(value, dict) for value in values):
            peak[key] = _extremes(values)
        elif values and all(number(value) is not None for value in values):
            peak[key] = min(values) if key.endswith('_free') else max(values)
    return peak


def _lost(windows: list[Line], stalls: list[Line]) -> Line:
    """Return seconds, share and number of the stalls, in total and by cause."""
    # Windows exclude the time lost in spans, whose line covers many iterations.
    spans = [line for line in stalls if line.get('iterations')]
    seconds, wall = total(windows, 'lost') + total(spans, 'lost'), total(windows, 'seconds')
    by_cause: dict[str, Line] = {}
    count = 0
    for line in stalls:
        iterations = int(number(line.get('iterations')) or 1)
        count += iterations
        for part in line.get('parts') or [dict(line, seconds=line.get('lost'))]:
            cause = str(part.get('cause', 'unexplained'))
            entry = by_cause.setdefault(
                cause, dict(seconds=0.0, count=0, category=part.get('category', 'unexplained'))
            )
            entry['seconds'] += number(part.get('seconds')) or 0.0
            entry['count'] += iterations
    share = seconds / wall if wall else None
    return dict(seconds=seconds, share=share, count=count, by_cause=by_cause)
