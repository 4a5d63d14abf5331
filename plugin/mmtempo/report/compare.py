"""Two runs side by side, and whether the second is slower than allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from mmtempo.utils.units import counted

from .format import MISSING, digits, duration, number, percent, size
from .run_log import RunLog

LEAST = 0.001  # share of the time from which on a phase is listed
FEW = 20  # iterations, of fewer nothing is judged; doctor.verdict says so as well
LENGTHS = 2  # times as long one run may be, before warm-up alone makes a difference
EVALUATION = ('phases', 'evaluation', 'seconds')
# What has to be the same for speeds to be comparable, and what to call it.
_MACHINE = ('cpu', 'cores', 'accelerator', 'torch')
_SETTING = ('batch_size', 'effective_batch', 'world', 'accumulation')


@dataclass
class Row:
    """One figure of both runs.

    Args:
        name: What it is.
        a: Of the first run; None where it was not measured.
        b: Of the second run.
        show: How to write it.
        higher: Whether more is better; None where neither is. Defaults to None.
    """

    name: str
    a: float | None
    b: float | None
    show: Callable[[Any], str]
    higher: bool | None = None

    @property
    def change(self) -> float | None:
        """Of the second against the first, as a fraction."""
        if self.a is None or self.b is None or not self.a:
            return None
        return self.b / self.a - 1


@dataclass
class Comparison:
    """Figures of two runs.

    Args:
        a: The run that sets the standard.
        b: The run that is judged.
        rows: Figures of both.
        warnings: Why the figures may not be comparable.
    """

    a: RunLog
    b: RunLog
    rows: list[Row] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def speed(self) -> Row:
        """What is judged: samples a second where both runs know them, else iterations."""
        known = {row.name: row for row in self.rows}
        for name in ('samples/s', 'it/s'):
            row = known.get(f'{name}, {_whole(self.a, self.b)}')
            if row is not None and row.a and row.b is not None:
                return row
        raise ValueError(
            f'{self.a.source} and {self.b.source}: no speed that both runs have; expected '
            'samples_per_s or it_per_s in both, which a run has from its first log point on'
        )

    @property
    def unfit(self) -> list[str]:
        """Why no verdict can rest on these runs: one crashed, or hardly began."""
        found = []
        for name, log in (('A', self.a), ('B', self.b)):
            count = _get(log.summary, ('iterations',))
            if log.summary.get('status') == 'crashed':
                found.append(f'{name} ({log.source}) crashed, after {_iterations(count)}')
            elif (count or 0) < FEW:
                found.append(f'{name} ({log.source}) has {_iterations(count)}, {FEW} are needed')
        return found

    @property
    def slower(self) -> float:
        """By how much the second run is slower, as a fraction; negative where it is faster."""
        return -(self.speed.change or 0.0)

    def is_too_slow(self, allowed: float) -> bool:
        # A billionth more: 95 against 100 is 5 % slower, whatever the rounding.
        return self.slower > allowed + 1e-9

    def show(self, console: Console) -> None:
        """Print the table, and what has to be known to read it."""
        table = Table(box=None, pad_edge=False, header_style='bold')
        table.add_column('')
        for head in ('A', 'B', 'B against A'):
            table.add_column(head, justify='right')
        for row in self.rows:
            table.add_row(row.name, row.show(row.a), row.show(row.b), _change(row))
        for name, log in (('A', self.a), ('B', self.b)):
            text = f'{name}  {log.name}  {log.source}'
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        console.print(table)
        for text in self.warnings:
            console.print(f'warning: {text}', markup=False, highlight=False, soft_wrap=True)


def compare(a: RunLog, b: RunLog) -> Comparison:
    """Put two runs side by side; without evaluations where one of them has only stock logs."""
    first, second = a.summary, b.summary
    if a.kind != b.kind:
        first, second = without_evaluation(a), without_evaluation(b)
    return Comparison(a, b, _rows(first, second, _whole(a, b)), _warnings(a, b))


def _whole(a: RunLog, b: RunLog) -> str:
    """What speeds are of."""
    return 'end to end' if a.kind == b.kind else 'without evaluations'


def without_evaluation(log: RunLog) -> dict[str, Any]:
    """A summary whose speeds and shares leave out evaluations, as those of stock logs do."""
    summary = log.summary
    seconds, evaluation = _get(summary, ('seconds',)), _get(summary, EVALUATION)
    if log.kind == 'stock' or not seconds or not evaluation:
        return summary
    left = seconds - evaluation
    found = dict(summary, seconds=left)
    for key in ('it_per_s', 'samples_per_s'):
        speed = _get(summary, (key,))
        if speed is not None and left > 0:
            found[key] = speed * seconds / left
    found['phases'] = {
        name: dict(entry, share=(number(entry.get('seconds')) or 0.0) / left if left > 0 else None)
        for name, entry in summary['phases'].items()
        if name != EVALUATION[1]
    }
    return found


def allowed_slowdown(text: str) -> float:
    """'5%' and '5' are five percent, and so is '0.05': below 1, no percent sign, a fraction."""
    match = re.fullmatch(r'\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*', text)
    if match:
        value = float(match[1])
        fraction = value if value < 1 and not match[2] else value / 100
        if fraction < 1:
            return fraction
    raise ValueError(
        f'found {text!r}, expected how much slower B may be than A: a percentage below 100 '
        "such as '5%' or '5', or a fraction such as '0.05'"
    )


def _rows(a: dict[str, Any], b: dict[str, Any], whole: str) -> list[Row]:
    def row(name: str, keys: tuple, show: Callable, higher: bool | None = None) -> Row:
        return Row(name, _get(a, keys), _get(b, keys), show, higher)

    rows = [
        row('iterations', ('iterations',), _count),
        row('steady it/s', ('steady',), digits, True),
        row(f'it/s, {whole}', ('it_per_s',), digits, True),
        row('samples/s, steady', ('samples_per_s_steady',), digits, True),
        row(f'samples/s, {whole}', ('samples_per_s',), digits, True),
        row('iteration, p50', ('p50',), duration, False),
        row('iteration, p95', ('p95',), duration, False),
        row('iteration, p99', ('p99',), duration, False),
        row('coefficient of variation', ('cv',), percent, False),
        row('share of time lost to stalls', ('lost', 'share'), percent, False),
    ]
    for name in _phases(a, b):
        rows.append(
            Row(f'{name}, per iteration', _each(a, name), _each(b, name), duration, higher=False)
        )
        rows.append(row(f'{name}, share', ('phases', name, 'share'), percent))
    for name, keys in (
        ('peak memory, all processes (PSS)', ('tree_pss',)),
        ('peak memory, all processes (RSS)', ('tree_rss',)),
        ('peak memory, main process', ('main_rss',)),
        ('peak RAM in use', ('ram_used',)),
        ('peak device memory', ('device', 'allocated')),
    ):
        show = percent if keys == ('ram_used',) else size
        rows.append(row(name, ('memory', 'peak', *keys), show, False))
    return [entry for entry in rows if entry.a is not None or entry.b is not None]


def _phases(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Those that take some time in either run, the largest first."""
    share: dict[str, float] = {}
    for name in [*(a.get('phases') or {}), *(b.get('phases') or {})]:
        found = (_get(summary, ('phases', name, 'share')) or 0.0 for summary in (a, b))
        share[name] = max(found)
    return sorted((name for name in share if share[name] >= LEAST), key=lambda name: -share[name])


def _get(summary: dict[str, Any], keys: tuple) -> float | None:
    found: Any = summary
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return number(found)


def _each(summary: dict[str, Any], phase: str) -> float | None:
    seconds = _get(summary, ('phases', phase, 'seconds'))
    iterations = _get(summary, ('iterations',))
    return seconds / iterations if seconds is not None and iterations else None


def _count(value: Any) -> str:
    found = number(value)
    return MISSING if found is None else f'{found:.0f}'


def _iterations(count: float | None) -> str:
    return 'an unknown number of iterations' if count is None else counted(int(count), 'iteration')


def _lengths(a: RunLog, b: RunLog) -> list[str]:
    """Warm-up comes once: the shorter run has more of it an iteration."""
    first, second = (_get(log.summary, ('iterations',)) for log in (a, b))
    if not first or not second or max(first, second) <= LENGTHS * min(first, second):
        return []
    return [
        f'lengths differ: {_iterations(first)} against {_count(second)}; warm-up is in '
        f"'{_whole(a, b)}' and weighs more in the shorter run, not so in 'steady'"
    ]


def _warnings(a: RunLog, b: RunLog) -> list[str]:
    found = _lengths(a, b)
    if a.kind != b.kind:
        ours = a if a.kind == 'tempo' else b
        took = duration(_get(ours.summary, EVALUATION) or 0.0)
        found.append(
            'one run has stock logs only, whose times leave out evaluations: those of the other '
            f'one ({took}) are left out here as well. Stock counts logging and saving as data'
        )
    for what, keys, first, second in (
        ('machines differ', _MACHINE, a.machine, b.machine),
        ('batches differ', _SETTING, a.setting, b.setting),
    ):
        differing = [
            f'{key.replace("_", " ")} {first[key]} against {second[key]}'
            for key in keys
            if key in first and key in second and first[key] != second[key]
        ]
        if differing:
            found.append(f'{what}: {"; ".join(differing)}')
        unknown = [name for name, known in (('A', first), ('B', second)) if not known]
        if unknown and 'machines' in what:
            found.append(f'the machine of {" and ".join(unknown)} is not known')
    for name, log in (('A', a), ('B', b)):
        if log.newer:
            found.append(f'{name}: {log.newer}')
        status = log.summary.get('status')
        if status in ('running', 'crashed', 'interrupted'):
            found.append(f'{name} did not end by itself ({status}): its figures are what it had')
    return found


def _change(row: Row) -> str:
    if row.change is None:
        return MISSING
    text = f'{100 * row.change:+.1f} %'
    if row.higher is None or abs(row.change) < 0.0005:
        return text
    return f'{text} {"better" if (row.change > 0) == row.higher else "worse "}'
