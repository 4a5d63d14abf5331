"""What a part does to the training's own steps, before and after it has worked.

Arms that share one process cannot show this: a part that slows the process slows all of them.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from .harness import Report, Timing

# The bars of the issue that asked for this measurement.
MAX_RATIO = 1.02
MAX_SWITCHES = 3, 20  # times those before the work, plus
MAX_THREADS = 0
REPEATS = dict(quick=3, full=7)
STEPS = dict(quick=60, full=200)
# Its pool ends at a fork and starts again later, which would hide threads of OpenMP.
ENVIRONMENT = dict(OPENBLAS_NUM_THREADS='1')


@dataclass(frozen=True)
class Effect:
    """What one process found.

    Attributes:
        before: Seconds of each step before the part has worked.
        after: Seconds of each step after that.
        switches: Voluntary context switches per step, before and after; None where not visible.
        threads: Native threads, before and after; None where not visible.
        lost: Seconds lost to one save; None where the part does not save.
    """

    before: list[float]
    after: list[float]
    switches: tuple[float, float] | None = None
    threads: tuple[int, int] | None = None
    lost: float | None = None

    @property
    def ratio(self) -> float:
        """How many times longer a step takes after the work."""
        return statistics.median(self.after) / statistics.median(self.before)


def run_part(part: str, steps: int, folder: str, *options: str) -> Effect:
    """Measure a part in a fresh process.

    Args:
        part: One of `side_effects_run.PARTS`.
        steps: Steps before and after its work.
        folder: Where it may write.
        options: More arguments of `side_effects_run`.
    """
    module = 'mmtempo.benchmarks.side_effects_run'
    command = [sys.executable, '-m', module, part, '--steps', str(steps), '--folder', folder]
    result = subprocess.run(
        [*command, *options], capture_output=True, text=True, env=os.environ | ENVIRONMENT
    )
    if result.returncode:
        raise RuntimeError(f'{command} failed: {result.stderr.strip()}')
    found = json.loads(result.stdout.splitlines()[-1])
    before, after = found['before'], found['after']
    is_visible = before['switches'] is not None
    return Effect(
        before['seconds'],
        after['seconds'],
        (before['switches'], after['switches']) if is_visible else None,
        (before['threads'], after['threads']) if is_visible else None,
        found.get('lost'),
    )


def measure_side_effects(
    report: Report, parts: list[str], judged: Collection[str], quick: bool, *options: str
) -> dict[str, list[Effect]]:
    """Add step times and context switches before and after each part's work, and their checks.

    Args:
        report: Gets arms, a table and checks.
        parts: Of `side_effects_run.PARTS`, in random order in each round.
        judged: Parts that are checked; the others are there to compare with.
        quick: Whether to take fewer rounds and steps.
        options: More arguments of `side_effects_run`.

    Returns:
        The effects of each part, round by round.
    """
    extent, order = 'quick' if quick else 'full', random.Random(0)
    found: dict[str, list[Effect]] = {part: [] for part in parts}
    # Not in /tmp, which may be memory.
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-', dir='.') as root:
        for _ in range(REPEATS[extent]):
            for part in order.sample(parts, len(parts)):
                with tempfile.TemporaryDirectory(dir=root) as folder:
                    found[part].append(run_part(part, STEPS[extent], folder, *options))
    _add_table(report, found)
    for part in judged:
        _add_checks(report, part, found[part])
    report.notes.append(
        f'own processes: {STEPS[extent]} matmul-bound steps before and after the work of a part, '
        f'in {REPEATS[extent]} fresh processes each; medians [quartiles] over the processes of the '
        'median step and of the ratio within a process. Context switches are voluntary ones of '
        'the training thread. "nothing" and "no save" show how far two windows differ by themselves'
    )
    if any(each.switches is None for effects in found.values() for each in effects):
        report.notes.append('context switches and native threads: not measured here, Linux only')
    return found


def _add_table(report: Report, found: dict[str, list[Effect]]) -> None:
    table = Table(title='a step before and after, in own processes')
    for column in ('part', 'before, ms', 'after / before', 'context switches', 'native threads'):
        table.add_column(column, justify='left' if column == 'part' else 'right')
    for part, effects in found.items():
        before = Timing([statistics.median(each.before) for each in effects])
        ratios = Timing([each.ratio for each in effects])
        low, high = ratios.quartiles
        figures: dict[str, Any] = dict(
            step=before.figures(),
            after_to_before=dict(median=ratios.median, iqr=[low, high], n=len(effects)),
        )
        row = [part, str(before), f'{ratios.median:.3f} [{low:.3f}, {high:.3f}]']
        for key, pair in (('switches', _switches(effects)), ('threads', _threads(effects))):
            figures[key] = pair
            row.append('' if pair is None else f'{pair[0]:.4g} -> {pair[1]:.4g}')
        report.arms[f'own processes, {part}'] = figures
        table.add_row(*row)
    report.tables.append(table)


def _add_checks(report: Report, part: str, effects: list[Effect]) -> None:
    ratio = statistics.median(each.ratio for each in effects)
    report.at_most(f'{part}: step time after / before', ratio, MAX_RATIO)
    switches, threads = _switches(effects), _threads(effects)
    if switches is not None:
        times, plus = MAX_SWITCHES
        limit = times * switches[0] + plus
        report.at_most(f'{part}: context switches per step after', switches[1], limit)
    if threads is not None:
        report.at_most(f'{part}: native threads added', threads[1] - threads[0], MAX_THREADS)


def _switches(effects: list[Effect]) -> tuple[float, float] | None:
    return _medians([each.switches for each in effects if each.switches is not None])


def _threads(effects: list[Effect]) -> tuple[float, float] | None:
    return _medians([each.threads for each in effects if each.threads is not None])


def _medians(pairs: list[Any]) -> tuple[float, float] | None:
    if not pairs:
        return None
    before, after = zip(*pairs)
    return statistics.median(before), statistics.median(after)
