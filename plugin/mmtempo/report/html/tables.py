"""The tables of the page: sections of a report, and what only the page shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mmtempo.report.format import MISSING, digits, duration, fact, few, flat, number, percent, size
from mmtempo.report.sections import Seconds, Section, Sentence, Share

from .markup import Markup, element, put, table

Formats = dict[str, tuple[str, Callable[[Any], str]]]


def render(section: Section, colors: Mapping[str, str] | None = None) -> Markup | None:
    """Return a section as a table with its notes, None if it has no rows.

    Args:
        section: The section.
        colors: Colors of the names in the first column. Defaults to None: no colors.
    """
    if not section.rows:
        return None
    columns = list(section.columns())
    rows = [[_cell(cell) for cell in row] for row in zip(*(cells for *_, cells in columns))]
    for row in rows if colors is not None else ():
        row[0] = put(swatch((colors or {}).get(str(row[0]), '--grey')), row[0])
    numeric = [index for index, (_, is_text, _) in enumerate(columns) if not is_text]
    notes = (element('p', text, class_='note') for text in section.notes)
    return put(table([name for name, *_ in columns], rows, numeric), *notes)


def _cell(cell: Any) -> Any:
    if isinstance(cell, Share):
        return bar(cell.value)
    if not isinstance(cell, Sentence):
        return cell
    words = [
        element('span', f'{name} {text}', class_='chip')
        for name, text in _shown_by(_EVIDENCE, cell.evidence)
    ]
    chips = element('div', *words, class_='chips') if words else None
    # It has a minimum width; a narrow page scrolls its table instead.
    return element('div', cell.text, chips, class_='sentence')


def changes(summary: Mapping[str, Any]) -> Section:
    """Return the changes of the usual iteration time, with the cause of slower ones."""
    rows = [
        [
            one.get('iter', MISSING),
            one.get('cause') or '',
            *map(Seconds, map(one.get, ('old', 'new'))),
        ]
        for one in summary.get('changes') or []
    ]
    head = ('<from iteration', '<cause', 'usual time before', 'usual time after')
    return Section('Changes of the usual iteration time', head, rows)


def memory(summary: Mapping[str, Any]) -> Section:
    """Return the last memory sample and the extremes of all."""
    found = summary.get('memory') or {}
    now, peak = (flat(found.get(key) or {}) for key in ('now', 'peak'))
    owner = now.get('ram_of') or 'the machine'
    rows = [
        [name.format(ram_of=owner), *(MISSING if one is None else show(one) for one in both)]
        for key, (name, show) in _MEMORY.items()
        if (both := [now.get(key), peak.get(key)]) != [None, None]
    ]
    return Section('Memory and device', ('<', 'last', 'extreme'), rows)


def settings(title: str, values: Mapping[str, Any]) -> Section:
    """Return keys and values, also those of inner dicts; None is omitted."""
    return Section(title, ('<', '<'), [list(row) for row in _shown_by({}, flat(values))])


def swatch(color: str) -> Markup:
    """Return a square of the color of this CSS variable."""
    return element('i', class_='swatch', style=f'--c:var({color})')


def bar(share: Any) -> Markup:
    """Return a share as a bar and in percent."""
    width = min(100.0, max(0.0, 100 * (number(share) or 0.0)))
    line = element('span', class_='bar', style=f'--w:{width:.1f}%')
    return put(line, element('span', percent(share), class_='share'))


def _shown_by(formats: Formats, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and texts of values; keys without a format are shown as they are."""
    found = []
    for key, value in values.items():
        if value is not None and value != []:
            name, show = formats.get(key, (key.replace('_', ' '), fact))
            found.append((name, show(value)))
    return found


# Key -> name and format.
_EVIDENCE: Formats = {
    'samples': ('samples', few),
    'files': ('files', few),
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
    'throttle': ('device throttled by', few),
    'shape': ('shape', lambda value: few(value, ' \N{MULTIPLICATION SIGN} ')),
}
_MEMORY: Formats = {
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
    'throttle': ('device: throttled by', few),
}
