"""Memory and device over time."""

from __future__ import annotations

from typing import Any

from mmtempo.report.format import number

from .chart import Chart, Line, plain, series


def memory(windows: list[Line]) -> Chart | None:
    """Bytes above, shares below, of the samples at the log points."""
    samples = [line['memory'] for line in windows if line.get('memory')]
    whose = samples[-1].get('ram_of') or 'the machine' if samples else ''
    bytes_, shares_ = [], []
    for path, name, color in (
        (('tree_pss',), 'all processes (PSS)', '--accent'),
        (('tree_rss',), 'all processes (RSS)', '--accent'),
        (('main_rss',), 'main process (RSS)', '--brown'),
        (('swap_used',), 'swap used', '--vermilion'),
        (('shm_used',), '/dev/shm used', '--grey'),
        (('device', 'allocated'), 'device, allocated', '--green'),
        (('device', 'reserved'), 'device, reserved', '--purple'),
    ):
        bytes_ += _memory_line(windows, path, name, color, 2**-30, '%{y:.2f} GiB')
    for path, name, color in (
        (('ram_used',), f'RAM of {plain(whose)}', '--orange'),
        (('device', 'utilisation'), 'device busy', '--olive'),
    ):
        shares_ += _memory_line(windows, path, name, color, 100, '%{y:.1f} %')
    if not bytes_ and not shares_:
        return None
    layout: Line = dict(xaxis=dict(title=dict(text='iteration')), hovermode='x unified')
    gib = dict(title=dict(text='GiB'), rangemode='tozero')
    used = dict(title=dict(text='in use'), range=[0, 100], ticksuffix=' %')
    if bytes_ and shares_:
        layout['xaxis']['anchor'] = 'y2'
        layout.update(yaxis=dict(gib, domain=[0.42, 1]), yaxis2=dict(used, domain=[0, 0.34]))
        for trace in shares_:
            trace['yaxis'] = 'y2'
    else:
        layout['yaxis'] = gib if bytes_ else used
    note = 'One sample a window.'
    return Chart('memory', 'Memory and device', note, bytes_ + shares_, layout, height=380)


def _memory_line(
    windows: list[Line], path: tuple, name: str, color: str, scale: float, hover: str
) -> list[Line]:
    def value(line: Line) -> float | None:
        found: Any = _with_used(line.get('memory') or {})
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        found = number(found)
        return None if found is None else scale * found

    x, y = series(windows, [value(line) for line in windows])
    if not any(y):  # not measured, or nothing of it used all the time
        return []
    line = dict(color=color, width=2)
    return [dict(x=x, y=y, name=name, mode='lines', line=line, hovertemplate=hover)]


def _with_used(sample: Line) -> Line:
    """What is free would dwarf everything else."""
    total, free = number(sample.get('shm_total')), number(sample.get('shm_free'))
    return sample if total is None or free is None else dict(sample, shm_used=total - free)
