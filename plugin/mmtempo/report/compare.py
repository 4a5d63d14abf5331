"""Compare two runs, and judge whether the second is slower than allowed."""

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
from .verdict.figures import FEW

MIN_SHARE = 0.001  # of the time: smaller phases are not listed
LENGTHS = 2  # ratio of two lengths above which warm-up distorts end-to-end speeds
EVALUATION = ('phases', 'evaluation', 'seconds')
# What must be equal for speeds to be comparable.
_MACHINE = ('cpu', 'cores', 'accelerator', 'torch')
_SETTING = ('batch_size', 'effective_batch', 'world', 'accumulation')


@dataclass
class Row:
    """A figure of both runs.

    Args:
        name: Name of the figure.
        a: Its value in the first run; None if it was not measured.
        b: Its value in the second run.
        show: Formats a value.
        higher: Whether a higher value is better; None if neither is. Defaults to None.
    """

    name: str
    a: float | None
    b: float | None
    show: Callable[[Any], str]
    higher: bool | None = None

    @property
    def change(self) -> float | None:
        """Change from the first run to the second, as a fraction of the first."""
        if self.a is None or self.b is None or not self.a:
            return None
        return self.b / self.a - 1


@dataclass
class Comparison:
    """Figures of two runs.

    Args:
        a: The reference run.
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
        """The figure that is judged: samples per second if both runs have it, else iterations."""
        by_name = {row.name: row for row in self.rows}
        for name in ('samples/s', 'it/s'):
            row = by_name.get(f'{name}, {_scope(self.a, self.b)}')
            if row is not None and row.a and row.b is not None:
                return row
        raise ValueError(
            f'{self.a.source} and {self.b.source}: found no speed that both runs have, expected '
            'samples_per_s or it_per_s in both; a run has them from its first log point on'
        )

    @property
    def unfit(self) -> list[str]:
        """Reasons why the runs cannot be judged: a crash, or too few iterations."""
        reasons = []
        for name, log in (('A', self.a), ('B', self.b)):
            count = _get(log.summary, ('iterations',))
            if log.summary.get('status') == 'crashed':
                reasons.append(f'{name} ({log.source}) crashed after {_iterations(count)}')
            elif (count or 0) < FEW:
                text = f'{name} ({log.source}) has {_iterations(count)}, at least {FEW} are needed'
                reasons.append(text)
        return reasons

    @property
    def slower(self) -> float:
        """Slowdown of the second run as a fraction; negative if it is faster."""
        return -(self.speed.change or 0.0)

    def is_too_slow(self, allowed: float) -> bool:
        """Return whether the second run is slower by more than the fraction `allowed`."""
        # Tolerate rounding: 95 against 100 is exactly 5 % slower.
        return self.slower > allowed + 1e-9

    def show(self, console: Console) -> None:
        """Print the sources, the table and the warnings."""
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
    """Compare two runs, without evaluations if one of them has only stock logs.

    Args:
        a: The reference run.
        b: The run that is judged.
    """
    first, second = a.summary, b.summary
    if a.kind != b.kind:
        first, second = without_evaluation(a), without_evaluation(b)
    return Comparison(a, b, _rows(first, second, _scope(a, b)), _warnings(a, b))


def _scope(a: RunLog, b: RunLog) -> str:
    """Return what speeds are measured over."""
    return 'end to end' if a.kind == b.kind else 'without evaluations'


def without_evaluation(log: RunLog) -> dict[str, Any]:
    """Return the summary with speeds and shares that exclude evaluations, as stock logs do."""
    summary = log.summary
    seconds, evaluation = _get(summary, ('seconds',)), _get(summary, EVALUATION)
    if log.kind == 'stock' or not seconds or not evaluation:
        return summary
    left = seconds - evaluation
    reduced = dict(summary, seconds=left)
    for key in ('it_per_s', 'samples_per_s'):
        speed = _get(summary, (key,))
        if speed is not None and left > 0:
            reduced[key] = speed * seconds / left
    reduced['phases'] = {
        name: dict(entry, share=(number(entry.get('seconds')) or 0.0) / left if left > 0 else None)
        for name, entry in summary['phases'].items()
        if name != EVALUATION[1]
    }
    return reduced


def allowed_slowdown(text: str) -> float:
    """Parse a slowdown as a fraction: '5%' and '5' are 0.05; below 1 without % is a fraction.

    Args:
        text: A percentage below 100, or a fraction.
    """
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


def _rows(a: dict[str, Any], b: dict[str, Any], scope: str) -> list[Row]:
    def row(name: str, keys: tuple, show: Callable, higher: bool | None = None) -> Row:
        return Row(name, _get(a, keys), _get(b, keys), show, higher)

    rows = [
        row('iterations', ('iterations',), _count),
        row('steady it/s', ('steady',), digits, True),
        row(f'it/s, {scope}', ('it_per_s',), digits, True),
        row('samples/s, steady', ('samples_per_s_steady',), digits, True),
        row(f'samples/s, {scope}', ('samples_per_s',), digits, True),
        row('iteration, p50', ('p50',), duration, False),
        row('iteration, p95', ('p95',), duration, False),
        row('iteration, p99', ('p99',), duration, False),
        row('coefficient of variation', ('cv',), percent, False),
        row('share of time lost to stalls', ('lost', 'share'), percent, False),
    ]
    for name in _phases(a, b):
        first, second = _per_iteration(a, name), _per_iteration(b, name)
        rows.append(Row(f'{name}, per iteration', first, second, duration, higher=False))
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
    """Return the phases that are large enough in either run, the largest first."""
    share: dict[str, float] = {}
    for name in [*(a.get('phases') or {}), *(b.get('phases') or {})]:
        share[name] = max(_get(one, ('phases', name, 'share')) or 0.0 for one in (a, b))
    listed = (name for name in share if share[name] >= MIN_SHARE)
    return sorted(listed, key=lambda name: -share[name])


def _get(summary: dict[str, Any], keys: tuple) -> float | None:
    value: Any = summary
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return number(value)


def _per_iteration(summary: dict[str, Any], phase: str) -> float | None:
    seconds = _get(summary, ('phases', phase, 'seconds'))
    iterations = _get(summary, ('iterations',))
    return seconds / iterations if seconds is not None and iterations else None


def _count(value: Any) -> str:
    count = number(value)
    return MISSING if count is None else f'{count:.0f}'


def _iterations(count: float | None) -> str:
    return 'an unknown number of iterations' if count is None else counted(int(count), 'iteration')


def _lengths(a: RunLog, b: RunLog) -> list[str]:
    """Warn if the lengths differ: warm-up is a larger share of a shorter run."""
    first, second = (_get(log.summary, ('iterations',)) for log in (a, b))
    if not first or not second or max(first, second) <= LENGTHS * min(first, second):
        return []
    return [
        f"lengths differ: {_iterations(first)} against {_count(second)}; '{_scope(a, b)}' includes "
        "warm-up, which weighs more in the shorter run; compare 'steady'"
    ]


def _warnings(a: RunLog, b: RunLog) -> list[str]:
    texts = _lengths(a, b)
    if a.kind != b.kind:
        ours = a if a.kind == 'tempo' else b
        took = duration(_get(ours.summary, EVALUATION) or 0.0)
        texts.append(
            'one run has stock logs only, whose times exclude evaluations: those of the other run '
            f'({took}) are excluded too; stock counts logging and saving as data'
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
            texts.append(f'{what}: {"; ".join(differing)}')
        unknown = [name for name, values in (('A', first), ('B', second)) if not values]
        if unknown and 'machines' in what:
            texts.append(f'the machine of {" and ".join(unknown)} is unknown')
    for name, log in (('A', a), ('B', b)):
        if log.newer:
            texts.append(f'{name}: {log.newer}')
        status = log.summary.get('status')
        if status in ('running', 'crashed', 'interrupted'):
            texts.append(f'{name}: the run did not complete ({status}); its figures are partial')
    return texts


def _change(row: Row) -> str:
    if row.change is None:
        return MISSING
    text = f'{100 * row.change:+.1f} %'
    if row.higher is None or abs(row.change) < 0.0005:
        return text
    return f'{text} {"better" if (row.change > 0) == row.higher else "worse "}'
