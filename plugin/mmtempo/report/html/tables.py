"""The tables of the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmtempo.report import stages as stage_texts
from mmtempo.report.format import MISSING, digits, duration, number, percent, size
from mmtempo.report.run_log import RunLog
from mmtempo.utils.units import counted

from .markup import Markup, element, put, table

ROWS = 200  # stalls that are listed; those of a summary are its largest ones anyway
# How to call evidence, and how to write it; other keys are shown as they are.
_EVIDENCE = {
    'samples': ('samples', lambda value: ', '.join(map(str, _few(value)))),
    'files': ('files', lambda value: ', '.join(map(str, _few(value)))),
    'slowest_sample': ('slowest sample', str),
    'sample_seconds': ('which took', duration),
    'worker_seconds': ('the worker took', duration),
    'waited': ('waited', duration),
    'major_faults': ('page faults from disk', str),
    'minor_faults': ('page faults', str),
    'gc_seconds': ('garbage collection', duration),
    'gc_collections': ('full collections', str),
    'system_seconds': ('CPU in the kernel', duration),
    'user_seconds': ('CPU elsewhere', duration),
    'swap_in': ('read from swap', size),
    'swap_out': ('written to swap', size),
    'writeback': ('on its way to disks', size),
    'psi_memory': ('waiting for memory', duration),
    'psi_io': ('waiting for disks', duration),
    'psi_cpu': ('waiting for a CPU', duration),
    'throttled': ('CPU quota took', duration),
    'throttle': ('device slowed by', lambda value: ', '.join(map(str, _few(value)))),
    'shape': ('shape', lambda value: ' \N{MULTIPLICATION SIGN} '.join(map(str, _few(value)))),
}
_MEMORY = {
    'ram_used': ('RAM of {ram_of} in use', percent),
    'ram_total': ('RAM of {ram_of}', size),
    'tree_pss': ('all processes of the training (PSS)', size),
    'tree_rss': ('all processes of the training (RSS: what they share counts for each)', size),
    'tree_processes': ('processes of the training', str),
    'main_rss': ('main process (RSS)', size),
    'swap_used': ('swap used', size),
    'writeback': ('on its way to disks', size),
    'shm_free': ('/dev/shm free', size),
    'shm_total': ('/dev/shm', size),
    'allocated': ('device: allocated', size),
    'reserved': ('device: reserved', size),
    'memory_used': ('device: used by everybody', size),
    'retries': ('device: allocator retries', str),
    'utilisation': ('device: busy', percent),
    'power': ('device: power', lambda value: digits(value, 'W')),
    'clock': ('device: clock', lambda value: digits(value, 'MHz')),
    'throttle': ('device: throttled by', lambda value: ', '.join(map(str, _few(value)))),
}


def phases(log: RunLog, colors: dict[str, str]) -> Markup | None:
    """Share, seconds and quantiles of each phase."""
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
    return _table(head + ["by the device's clock"] * bool(device), rows)


def _device_seconds(found: dict[str, Any]) -> float | None:
    """Of an iteration that was measured, from its first event to its last: gaps are in it."""
    seconds, count = number(found.get('seconds')), number(found.get('count'))
    return seconds / count if seconds is not None and count else None


def stages(log: RunLog) -> Markup | None:
    """The forward pass by module."""
    found = log.summary.get('stages') or {}
    if 'stages' not in log.summary:
        found = next(reversed(log.of_last_run(log.stages)), {})
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
    notes = [element('p', text, class_='note') for text in stage_texts.notes(found)]
    title = element('h2', stage_texts.title(found))
    return put(title, _table(head, rows, texts=2), *notes)


def stalls(log: RunLog) -> Markup | None:
    """The slow iterations that cost most."""
    found = log.summary.get('stalls')
    found = log.of_last_run(log.stalls) if found is None else found
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
    head = ['iteration', 'lost', 'took', 'cause', 'what was seen']
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
    """What comes back every so many iterations."""
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
    return _table(['period', 'which is', 'cause', 'stalls', 'what it means'], rows, texts=5)


def _sentence(*parts: Any) -> Markup:
    """What needs some room to be read: a narrow page scrolls such a table instead."""
    found = put(*parts)
    return element('div', found, class_='sentence') if found else found


def changes(log: RunLog) -> Markup | None:
    """Where the usual time of an iteration has changed, and why, if it is slower."""
    rows = [
        [
            change.get('iter', MISSING),
            change.get('cause') or '',
            duration(change.get('old')),
            duration(change.get('new')),
        ]
        for change in log.summary.get('changes') or []
    ]
    return _table(['from iteration', 'cause', 'usual before', 'usual since'], rows, texts=2)


def memory(log: RunLog) -> Markup | None:
    """The last sample and the extremes."""
    found = log.summary.get('memory') or {}
    now, peak = (_flat(found.get(key) or {}) for key in ('now', 'peak'))
    whose = now.get('ram_of') or 'the machine'
    busy = log.summary.get('device_busy') or {}
    rows = []
    for key, (name, show) in _MEMORY.items():
        values = [now.get(key), peak.get(key)]
        if values != [None, None]:
            rows.append([name.format(ram_of=whose), *(_safe(show, value) for value in values)])
        if key == 'utilisation' and busy:
            looks = counted(busy.get('looks', 0), 'look')
            rows.append([f'{name}, mean of {looks}', percent(busy.get('mean')), MISSING])
    return _table(['', 'last', 'extreme'], rows)


def ranks(log: RunLog) -> Markup | None:
    """Which process was the slowest."""
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
    head = ['seconds of an iteration', 'longest', 'rank', 'mean longest', 'usual rank', 'windows']
    return _table(head, rows)


def warnings(log: RunLog) -> Markup | None:
    found = log.summary.get('warnings')
    if found is None:
        found = [line.get('text') for line in log.of_last_run(log.warnings)]
    if not found:
        return None
    return element('ul', *(element('li', text) for text in found), class_='warnings')


def settings(values: dict[str, Any]) -> Markup | None:
    """Keys and values; what is not known is left out."""
    rows = [
        [key.replace('_', ' '), _shown(value)]
        for key, value in _flat(values).items()
        if value is not None
    ]
    return _table(['', ''], rows, texts=2)


def swatch(color: str) -> Markup:
    return element('i', class_='swatch', style=f'--c:var({color})')


def bar(share: Any) -> Markup:
    """A share in percent, and as a bar."""
    width = min(100.0, max(0.0, 100 * (number(share) or 0.0)))
    line = element('span', class_='bar', style=f'--w:{width:.1f}%')
    return put(line, element('span', percent(share), class_='share'))


def _table(head: list[str], rows: list[list[Any]], texts: int = 1) -> Markup | None:
    """Numbers stand right of the first columns; columns without any value are left out."""
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
    """Values of inner dicts among the others."""
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
