"""Measure how a part changes the training steps after its work, in fresh processes.

Arms in one process cannot show this: a part that slows the process slows all arms.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

from .harness import Report, Timing, take_rounds

# Bars.
MAX_RATIO = 1.02
MAX_SWITCHES = 3, 20  # factor of the switches before the work, and summand
MAX_THREADS = 0
REPEATS = dict(quick=3, full=7)
STEPS = dict(quick=60, full=200)
# The thread pool of OpenBLAS ends at a fork and restarts later, which would hide OpenMP threads.
ENVIRONMENT = dict(OPENBLAS_NUM_THREADS='1')


@dataclass(frozen=True)
class Effect:
    """Measurement of one process.

    Attributes:
        before: Seconds of each step before the work of the part.
        after: Seconds of each step after it.
        switches: Voluntary context switches per step, before and after; Nones if not available.
        threads: Native threads, before and after; Nones if not available.
        lost: Seconds lost to one save; None if the part does not save.
    """

    before: list[float]
    after: list[float]
    switches: tuple[Any, Any] = (None, None)
    threads: tuple[Any, Any] = (None, None)
    lost: float | None = None

    @property
    def ratio(self) -> float:
        """Ratio of the median steps after and before the work."""
        return statistics.median(self.after) / statistics.median(self.before)


def run_part(part: str, steps: int, *options: str) -> Effect:
    """Measure a part in a fresh process.

    Args:
        part: Key of `side_effects_run.PARTS`.
        steps: Number of steps before its work, and after it.
        options: Further arguments of `side_effects_run`.
    """
    command = [sys.executable, '-m', 'mmtempo.benchmarks.side_effects_run', part, *options]
    # Not in /tmp, which may be in memory.
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-', dir='.') as folder:
        command += ['--steps', str(steps), '--folder', folder]
        env = os.environ | ENVIRONMENT
        result = subprocess.run(command, capture_output=True, text=True, env=env)
    if result.returncode:
        raise RuntimeError(f'{command} failed: {result.stderr.strip()}')
    found = json.loads(result.stdout.splitlines()[-1])
    before, after = found['before'], found['after']
    switches, threads = ((before[key], after[key]) for key in ('switches', 'threads'))
    return Effect(before['seconds'], after['seconds'], switches, threads, found.get('lost'))


def measure_side_effects(
    report: Report, parts: list[str], judged: Collection[str], quick: bool, *options: str
) -> dict[str, list[Effect]]:
    """Measure step times and context switches before and after the work of each part.

    Args:
        report: Report to which arms, a table, notes and checks are added.
        parts: Keys of `side_effects_run.PARTS`; each round takes them in random order.
        judged: Parts that are checked; the others are for comparison.
        quick: Whether to take fewer rounds and steps.
        options: Further arguments of `side_effects_run`.

    Returns:
        The effects of each part in the order of the rounds.
    """
    extent = 'quick' if quick else 'full'
    works = {part: partial(run_part, part, STEPS[extent], *options) for part in parts}
    found: dict[str, list[Effect]] = take_rounds(works, REPEATS[extent])
    _add_table(report, found)
    for part in judged:
        _add_checks(report, part, found[part])
    report.notes.append(
        f'own processes: {STEPS[extent]} matmul-bound steps before and after the work of a part, '
        f'in {REPEATS[extent]} fresh processes each; medians [quartiles] over the processes of the '
        'median step and of the ratio within a process. Context switches: voluntary, of the main '
        'thread. "nothing" and "no save" show the noise of the measurement'
    )
    if found[parts[0]][0].switches[0] is None:
        report.notes.append('context switches, native threads: not measured here, they need Linux')
    return found


def _add_table(report: Report, found: dict[str, list[Effect]]) -> None:
    columns = ('part', 'before, ms', 'after / before', 'context switches', 'native threads')
    table = report.add_table('a step before and after, in own processes', columns, left=('part',))
    for part, effects in found.items():
        before = Timing([statistics.median(each.before) for each in effects])
        ratios = Timing([each.ratio for each in effects])
        figures: dict[str, Any] = dict(
            step=before.figures(), after_to_before=ratios.plain_figures()
        )
        row = [part, str(before), ratios.text(3)]
        for key in ('switches', 'threads'):
            figures[key] = pair = _medians(effects, key)
            row.append('' if pair is None else f'{pair[0]:.4g} -> {pair[1]:.4g}')
        report.arms[f'own processes, {part}'] = figures
        table.add_row(*row)


def _add_checks(report: Report, part: str, effects: list[Effect]) -> None:
    ratio = statistics.median(each.ratio for each in effects)
    report.at_most(f'{part}: step time after / before', ratio, MAX_RATIO)
    switches, threads = _medians(effects, 'switches'), _medians(effects, 'threads')
    if switches is not None:
        times, plus = MAX_SWITCHES
        limit = times * switches[0] + plus
        report.at_most(f'{part}: context switches per step after', switches[1], limit)
    if threads is not None:
        report.at_most(f'{part}: native threads added', threads[1] - threads[0], MAX_THREADS)


def _medians(effects: list[Effect], key: str) -> tuple[float, float] | None:
    """Return the medians of an attribute before and after the work; None if not available."""
    pairs = [getattr(each, key) for each in effects]
    if None in pairs[0]:
        return None
    before, after = zip(*pairs)
    return statistics.median(before), statistics.median(after)
