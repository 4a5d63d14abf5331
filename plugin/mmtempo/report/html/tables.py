"""The tables of the page; columns without any value are omitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmtempo.report.format import (
    MISSING,
    digits,
    duration,
    number,
    percent,
    profile_notes,
    profile_title,
    size,
)
from mmtempo.report.run_log import RunLog
from mmtempo.utils.units import counted

from .markup import Markup, element, put, table

ROWS = 200  # stalls that are listed
# Key of the evidence -> its name and format; other keys are shown as they are.
_EVIDENCE = {
    'samples': ('samples', lambda value: ', '.join(map(str, _few(value)))),
    'files': ('files', lambda value: ', '.join(map(str, _few(value)))),
    'slowest_sample': ('slowest sample', str),
    'sample_seconds': ('its time', duration),
    'worker_seconds': ('time of the worker', duration),
    'waited': ('waited', duration),
    'major_faults': ('page faults from disk', str),
    'minor_faults': ('page faults', str),
    'gc_seconds': ('garbage collection', duration),
    'gc_collections': ('full collections', str),
    'system_seconds': ('CPU in the kernel', duration),
    'user_seconds': ('CPU outside the kernel', duration),
    'swap_in': ('read from swap', size),
    'swap_out': ('written to swap', size),
    'writeback': ('being written to disks', size),
    'psi_memory': ('waiting for memory', duration),
    'psi_io': ('waiting for disks', duration),
    'psi_cpu': ('waiting for a CPU', duration),
    'throttled': ('throttled by the CPU quota', duration),
    'throttle': ('device throttled by', lambda value: ', '.join(map(str, _few(value)))),
    'shape': ('shape', lambda value: ' \N{MULTIPLICATION SIGN} '.join(map(str, _few(value)))),
}
_MEMORY = {
    'ram_used': ('RAM of {ram_of} in use', percent),
    'ram_total': ('RAM of {ram_of}', size),
    'tree_pss': ('all processes of the training (PSS)', size),
    'tree_rss': ('all processes of the training (RSS: shared memory counts for each)', size),
    'tree_processes': ('processes of the training', str),
    'main_rss': ('main process (RSS)', size),
    'swap_used': ('swap used', size),
    'writeback': ('being written to disks', size),
    'shm_free': ('/dev/shm free', size),
    'shm_total': ('/dev/shm', size),
    'allocated': ('device: allocated', size),
    'reserved': ('device: reserved', size),
    'memory_used': ('device: used by all processes', size),
    'retries': ('device: allocator retries', str),
    'utilisation': ('device: busy', percent),
    'power': ('device: power', lambda value: digits(value, 'W')),
    'clock': ('device: clock', lambda value: digits(value, 'MHz')),
    'throttle': ('device: throttled by', lambda value: ', '.join(map(str, _few(value)))),
}


def phases(log: RunLog, colors: dict[str, str]) -> Markup | None:
    """Return share, seconds and quantiles of each phase.

    Args:
        log: The run.
        colors: Colors of the phases.
    """
    found = log.summary.get('phases') or {}
    device = log.summary.get('device') or {}
    iterations = number(log.summary.get('iterations'))
    rows = []
    for name, entry in sorted(found.items(), key=lambda row: -(number(row[1].get('share')) or 0)):
        seconds = number(entry.get('seconds'))
        each = seconds / iterations if seconds is not None and iterations else None
        row: list[Any] = [
            put(swatch(colors.get(name, '--grey')), name),
            bar(entry.get('share')),
            duration(seconds),
            duration(each),
            *(duration(entry.get(key)) for key in ('p50', 'p95', 'p99')),
        ]
        if device:
            row.append(duration(_device_seconds(device.get(name) or {})))
        rows.append(row)
    head = ['phase', 'share', 'seconds', 'per iteration', 'p50', 'p95', 'p99']
    return _table(head + ['device time'] * bool(device), rows)


def _device_seconds(found: dict[str, Any]) -> float | None:
    """Return the mean device time of an iteration, gaps between its events included."""
    seconds, count = number(found.get('seconds')), number(found.get('count'))
    return seconds / count if seconds is not None and count else None


def stages(log: RunLog) -> Markup | None:
    """Return the time of the forward pass by module."""
    found = log.summary.get('stages') or {}
    rows = [
        [
            element('code', stage.get('name', MISSING)),
            stage.get('type', MISSING),
            bar(stage.get('share')),
            duration(stage.get('seconds')),
            duration(stage.get('device_seconds')),
            _shown(stage.get('calls', MISSING)),
        ]
        for stage in found.get('stages') or []
    ]
    if not rows:
        return None
    head = ['stage', 'type', 'share of forward', 'host time', 'device time', 'calls']
    notes = [element('p', text, class_='note') for text in profile_notes(found)]
    title = element('h2', profile_title(found))
    return put(title, _table(head, rows, texts=2), *notes)


def stalls(log: RunLog) -> Markup | None:
    """Return the slow iterations that cost most."""
    found = log.summary.get('stalls') or []
    found = sorted(found, key=lambda line: -(number(line.get('lost')) or 0))[:ROWS]
    rows = [
        [
            line.get('iter', MISSING),
            duration(line.get('lost')),
            duration(line.get('seconds')),
            put(element('b', line.get('cause', MISSING)), _phase(line)),
            _sentence(line.get('text'), _evidence(line.get('evidence') or {})),
        ]
        for line in found
    ]
    if not rows:
        return None
    head = ['iteration', 'lost', 'took', 'cause', 'evidence']
    return table(head, rows, numeric=(0, 1, 2))


def _phase(line: dict[str, Any]) -> Markup | None:
    phase = line.get('phase')
    if not phase or phase.removeprefix('hook:') == line.get('cause'):
        return None
    return element('div', 'in ', phase, class_='note')


def _evidence(found: dict[str, Any]) -> Markup | None:
    words = []
    for key, value in found.items():
        if value is None or value == []:
            continue
        name, show = _EVIDENCE.get(key, (key.replace('_', ' '), _shown))
        words.append(element('span', f'{name} {_safe(show, value)}', class_='chip'))
    return element('div', *words, class_='chips') if words else None


def periods(log: RunLog) -> Markup | None:
    """Return the causes that recur with a fixed period."""
    found = log.summary.get('periods') or []
    rows = [
        [
            f'every {period.get("every", MISSING)}',
            period.get('what') or MISSING,
            period.get('cause', MISSING),
            f'{period.get("count", MISSING)} of {period.get("of", MISSING)}',
            _sentence(period.get('text')),
        ]
        for period in found
    ]
    return _table(['period', 'equals', 'cause', 'stalls', 'description'], rows, texts=5)


def _sentence(*parts: Any) -> Markup:
    """Return a text with a minimum width; a narrow page scrolls its table instead."""
    text = put(*parts)
    return element('div', text, class_='sentence') if text else text


def changes(log: RunLog) -> Markup | None:
    """Return the changes of the usual iteration time, with the cause of slower ones."""
    rows = [
        [
            change.get('iter', MISSING),
            change.get('cause') or '',
            duration(change.get('old')),
            duration(change.get('new')),
        ]
        for change in log.summary.get('changes') or []
    ]
    return _table(
        ['from iteration', 'cause', 'usual time before', 'usual time after'], rows, texts=2
    )


def memory(log: RunLog) -> Markup | None:
    """Return the last memory sample and the extremes of all."""
    found = log.summary.get('memory') or {}
    now, peak = (_flat(found.get(key) or {}) for key in ('now', 'peak'))
    owner = now.get('ram_of') or 'the machine'
    busy = log.summary.get('device_busy') or {}
    rows = []
    for key, (name, show) in _MEMORY.items():
        values = [now.get(key), peak.get(key)]
        if values != [None, None]:
            rows.append([name.format(ram_of=owner), *(_safe(show, value) for value in values)])
        if key == 'utilisation' and busy:
            readings = counted(busy.get('looks', 0), 'reading')
            rows.append([f'{name}, mean of {readings}', percent(busy.get('mean')), MISSING])
    return _table(['', 'last', 'extreme'], rows)


def ranks(log: RunLog) -> Markup | None:
    """Return the time of the slowest rank, and which rank it was."""
    found = log.summary.get('ranks') or {}
    rows = [
        [
            name,
            duration(entry.get('max')),
            entry.get('rank', MISSING),
            duration(entry.get('mean')),
            entry.get('usual', MISSING),
            f'{entry["often"]} of {entry.get("of")}' if 'often' in entry else MISSING,
        ]
        for name, entry in found.items()
        if isinstance(entry, dict)
    ]
    head = ['per iteration', 'slowest', 'rank', 'mean of the slowest', 'usual rank', 'windows']
    return _table(head, rows)


def warnings(log: RunLog) -> Markup | None:
    """Return the warnings of the last run."""
    found = log.summary.get('warnings')
    if not found:
        return None
    return element('ul', *(element('li', text) for text in found), class_='warnings')


def settings(values: dict[str, Any]) -> Markup | None:
    """Return keys and values; None is omitted."""
    rows = [
        [key.replace('_', ' '), _shown(value)]
        for key, value in _flat(values).items()
        if value is not None
    ]
    return _table(['', ''], rows, texts=2)


def swatch(color: str) -> Markup:
    """Return a square of the color of this CSS variable."""
    return element('i', class_='swatch', style=f'--c:var({color})')


def bar(share: Any) -> Markup:
    """Return a share as a bar and in percent."""
    width = min(100.0, max(0.0, 100 * (number(share) or 0.0)))
    line = element('span', class_='bar', style=f'--w:{width:.1f}%')
    return put(line, element('span', percent(share), class_='share'))


def _table(head: list[str], rows: list[list[Any]], texts: int = 1) -> Markup | None:
    """Return a table without the columns that have no value.

    Args:
        head: Names of the columns.
        rows: Cells of each row; without rows, there is no table.
        texts: Number of columns with text, before those with numbers. Defaults to 1.
    """
    if not rows:
        return None
    kept = [
        column
        for column in range(len(head))
        if column == 0 or any(str(row[column]) not in (MISSING, '') for row in rows)
    ]
    numeric = [place for place, column in enumerate(kept) if column >= texts]
    return table([head[i] for i in kept], [[row[i] for i in kept] for row in rows], numeric)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Replace inner dicts by their items."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found.update(value)
        else:
            found[key] = value
    return found


def _few(values: Any, count: int = 8) -> Iterable[Any]:
    if not isinstance(values, (list, tuple)):
        return [values]
    return [*values[:count], '…'] if len(values) > count else values


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.0f}' if value.is_integer() else digits(value)
    if isinstance(value, (list, tuple)):
        return ', '.join(map(str, _few(value, 30)))
    return str(value)


def _safe(show: Any, value: Any) -> str:
    return MISSING if value is None else show(value)
