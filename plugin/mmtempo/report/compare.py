"""Compare two runs, and judge whether the second is slower than allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from rich.console import Console
from rich.table import Table

from .format import MISSING, count, digits, duration, fact, flat, iterations, number, percent, size
from .run_log import RunLog
from .sections import MIN_SHARE
from .verdict.figures import FEW

LISTED = 0.001  # of the time: smaller phases are not listed
MIN_SIZE = 1 << 20  # bytes; ratios of smaller sizes mean nothing
NOTABLE = 0.05  # of the run: a smaller difference of pressure is not listed
LENGTHS = 2  # ratio of two lengths above which warm-up distorts end-to-end speeds
EVALUATION = ('phases', 'evaluation', 'seconds')
_MODEL = ('model', 'parameters')  # must be equal for speeds to be comparable
# Not listed as settings.
_OTHERS = ('config', 'parts', 'loop', 'default_hooks', 'train_cfg_has_type')
_PRESSURE = dict(
    cpu='waiting for a CPU', memory='waiting for memory', io='waiting for disks',
    others='CPU time of other processes', busy='CPU time in use',
)  # fmt: skip


@dataclass
class Row:
    """A figure of both runs.

    Args:
        name: Name of the figure.
        a: Its value in the first run; None if it was not measured.
        b: Its value in the second run.
        show: Formats a value.
        higher: Whether a higher value is better; None if neither is. Defaults to None.
        large: Whether each value is large enough for a ratio. Defaults to (True, True).
        is_phase: Whether a missing value means that the run has no such phase. Defaults to False.
    """

    name: str
    a: float | None
    b: float | None
    show: Callable[[Any], str]
    higher: bool | None = None
    large: Sequence[bool] = (True, True)
    is_phase: bool = False

    @property
    def change(self) -> float | None:
        """Change as a fraction of the first value; None for small values and for shares."""
        if not self.a or self.b is None or not all(self.large) or self.show is percent:
            return None
        return self.b / self.a - 1

    def texts(self) -> tuple[str, str]:
        """Format both values, times in the same unit."""
        if self.show is duration:
            largest = max(self.a or 0.0, self.b or 0.0)
            return duration(self.a, largest), duration(self.b, largest)
        return self.show(self.a), self.show(self.b)

    def change_text(self) -> str:
        """Describe the change: a ratio, a difference, or that a phase is new or gone."""
        if self.a is None or self.b is None:
            return MISSING if not self.is_phase else 'new' if self.a is None else 'gone'
        change, difference = self.change, self.b - self.a
        if change is not None or self.show is percent:
            change, unit = (difference, 'points') if change is None else (change, '%')
            change = change if abs(change) >= 0.0005 else 0.0
            text, is_equal = f'{100 * change:+.1f} {unit}', not change
        elif any(self.large):
            text, is_equal = f'{"-+"[difference > 0]}{self.show(abs(difference))}', not difference
        else:
            return MISSING
        if self.higher is None or is_equal:
            return text
        return f'{text} {"better" if (difference > 0) == self.higher else "worse "}'


@dataclass
class Comparison:
    """Figures of two runs.

    Args:
        a: The reference run.
        b: The run that is judged.
        rows: Figures of both.
        differences: What differs between the runs besides their speed, and limits of the figures.
        unfit: Reasons why the runs cannot be compared; empty if they can.
    """

    a: RunLog
    b: RunLog
    rows: list[Row] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    unfit: list[str] = field(default_factory=list)

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
    def slower(self) -> float:
        """Slowdown of the second run as a fraction; negative if it is faster."""
        return -(self.speed.change or 0.0)

    def is_too_slow(self, allowed: float) -> bool:
        """Return whether the second run is slower by more than the fraction `allowed`."""
        # Tolerate rounding: 95 against 100 is exactly 5 % slower.
        return self.slower > allowed + 1e-9

    def show(self, console: Console) -> None:
        """Print the sources, the differences, and the table; without ratios if it is unfit."""
        table = Table(box=None, pad_edge=False, header_style='bold')
        table.add_column('')
        for head in ('A', 'B') if self.unfit else ('A', 'B', 'B against A'):
            table.add_column(head, justify='right')
        for row in self.rows:
            table.add_row(row.name, *row.texts(), *([] if self.unfit else [row.change_text()]))
        lines = [f'{name}  {log.name}  {log.source}' for name, log in _named(self.a, self.b)]
        lines += self.differences
        if self.unfit:
            lines.append(f'cannot be compared: {"; ".join(self.unfit)}')
        for text in lines:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        console.print(table)


def compare(a: RunLog, b: RunLog) -> Comparison:
    """Compare two runs, without evaluations if one of them has only stock logs.

    Args:
        a: The reference run.
        b: The run that is judged.
    """
    first, second = a.summary, b.summary
    if a.kind != b.kind:
        first, second = without_evaluation(a), without_evaluation(b)
    rows = _rows(first, second, _scope(a, b), is_same_kind=a.kind == b.kind)
    return Comparison(a, b, rows, _differences(a, b), _unfit(a, b))


def _named(a: RunLog, b: RunLog) -> tuple[tuple[str, RunLog], ...]:
    return ('A', a), ('B', b)


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


def _rows(a: dict[str, Any], b: dict[str, Any], scope: str, is_same_kind: bool) -> list[Row]:
    def row(
        name: str, keys: tuple, show: Callable, higher: bool | None = None, least: float = 0.0
    ) -> Row:
        values = _get(a, keys), _get(b, keys)
        return Row(name, *values, show, higher, [(one or 0.0) >= least for one in values])

    rows = [
        row('iterations', ('iterations',), count, least=math.inf),  # a length is not judged
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
    has_phases = is_same_kind and bool(a.get('phases')) and bool(b.get('phases'))
    for name in _phases(a, b):
        first, second = _per_iteration(a, name), _per_iteration(b, name)
        shares = [_get(one, ('phases', name, 'share')) or 0.0 for one in (a, b)]
        large = [share >= MIN_SHARE for share in shares]
        text = f'{name}, per iteration'
        rows.append(Row(text, first, second, duration, False, large, has_phases))
        rows.append(row(f'{name}, share', ('phases', name, 'share'), percent))
    for name, keys in (
        ('peak memory, all processes (PSS)', ('tree_pss',)),
        ('peak memory, all processes (RSS)', ('tree_rss',)),
        ('peak memory, main process', ('main_rss',)),
        ('peak RAM in use', ('ram_used',)),
        ('peak device memory', ('device', 'allocated')),
    ):
        show = percent if keys == ('ram_used',) else size
        rows.append(row(name, ('memory', 'peak', *keys), show, False, MIN_SIZE))
    return [entry for entry in rows if entry.a is not None or entry.b is not None]


def _phases(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Return the phases that are large enough in either run, the largest first."""
    share = {
        name: max(_get(one, ('phases', name, 'share')) or 0.0 for one in (a, b))
        for name in [*(a.get('phases') or {}), *(b.get('phases') or {})]
    }
    return sorted(filter(lambda name: share[name] >= LISTED, share), key=lambda name: -share[name])


def _get(summary: dict[str, Any], keys: tuple) -> float | None:
    value: Any = summary
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return number(value)


def _per_iteration(summary: dict[str, Any], phase: str) -> float | None:
    seconds = _get(summary, ('phases', phase, 'seconds'))
    done = _get(summary, ('iterations',))
    return seconds / done if seconds and done else None


def _unfit(a: RunLog, b: RunLog) -> list[str]:
    """Return why speeds of two runs cannot be compared: another model, a crash, or no speed."""
    reasons = []
    for name, log in _named(a, b):
        done = _get(log.summary, ('iterations',))
        if log.summary.get('status') == 'crashed':
            reasons.append(f'{name} ({log.source}) crashed after {iterations(done)}')
        elif (done or 0) < FEW:
            few = f'{iterations(done)}, at least {FEW} are needed'
            reasons.append(f'{name} ({log.source}) has {few}')
    return reasons + _differing(a.setting, b.setting, _MODEL)


def _differences(a: RunLog, b: RunLog) -> list[str]:
    """Return what differs besides the figures of the table, and limits of the figures."""
    found = dict(
        settings=_differing(_work(a), _work(b)) + _parts(a, b),
        machine=_differing(flat(a.machine), flat(b.machine)),
        pressure=_pressure(a, b),
    )
    lines = [f'{what}: {"; ".join(texts)}' for what, texts in found.items() if texts]
    unknown = [name for name, log in _named(a, b) if not log.machine]
    if unknown:
        lines.append(f'the machine of {" and ".join(unknown)} is unknown')
    counts = [_get(log.summary, ('iterations',)) or 0.0 for log in (a, b)]
    if max(counts) > LENGTHS * min(counts) > 0:
        lines.append(
            f"lengths: {iterations(counts[0])} against {count(counts[1])}; '{_scope(a, b)}' "
            "includes warm-up, which weighs more in the shorter run; compare 'steady'"
        )
    if a.kind != b.kind:
        ours = a if a.kind == 'tempo' else b
        took = duration(_get(ours.summary, EVALUATION) or 0.0)
        lines.append(
            'one run has stock logs only, whose times exclude evaluations: those of the other run '
            f'({took}) are excluded too; stock counts logging and saving as data'
        )
    for name, log in _named(a, b):
        lines += [f'{name}: {log.newer}'] if log.newer else []
        status = log.summary.get('status')
        if status in ('running', 'interrupted'):
            lines.append(f'{name}: the run did not complete ({status}); its figures are partial')
    return lines


def _differing(
    first: Mapping[str, Any], second: Mapping[str, Any], keys: Iterable[str] = ()
) -> list[str]:
    """Describe the facts, or those of `keys`, that both runs have and that differ."""
    return [
        f'{key.replace("_", " ")} {fact(first[key])} against {fact(second[key])}'
        for key in keys or first
        if key in first and key in second and first[key] != second[key]
    ]


def _work(log: RunLog) -> dict[str, Any]:
    """Return the settings of a run, and what is known of its config, precision and inputs."""
    known = {}
    if log.setting.get('config'):
        known['config'] = PurePath(log.setting['config']).name
    for part in log.setting.get('parts') or ():
        if part.endswith('OptimWrapper'):
            known['precision'] = 'mixed' if re.search('Amp|Apex', part) else 'full'
    known.update((key, log.summary[key]) for key in ('shapes', 'inputs') if log.summary.get(key))
    return known | {key: one for key, one in log.setting.items() if key not in _OTHERS}


def _parts(a: RunLog, b: RunLog) -> list[str]:
    """Describe loops, hooks and wrappers that only one of the runs has."""
    first, second = (set(log.setting.get('parts') or ()) for log in (a, b))
    return [
        f'only {name} has {", ".join(sorted(own))}'
        for name, own in (('A', first - second), ('B', second - first))
        if own and first and second
    ]


def _pressure(a: RunLog, b: RunLog) -> list[str]:
    """Describe the shares of both runs in which processes waited, where they differ clearly."""
    shares = {
        what: [_get(log.summary, ('pressure', key)) for log in (a, b)]
        for key, what in _PRESSURE.items()
    }
    return [
        f'{what} {percent(first)} against {percent(second)}'
        for what, (first, second) in shares.items()
        if first is not None and second is not None and abs(first - second) >= NOTABLE
    ]
