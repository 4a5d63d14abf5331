"""Measure what a save costs the training: no save, stock, stock with fsync, and ours."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.harness import Report, Timing, ratio, take_rounds
from mmtempo.benchmarks.side_effects import measure_side_effects

from .arms import AFTER, ARMS, SHAPES, Arm, Round

# Bars.
MAX_LOST = {'sleep': 0.02, 'python': 0.45, 'matmul 1': 0.45, 'matmul 2': 0.45}
MAX_MEMORY = 1.15
# Width of the backbone; the saved state is LSS-Swin with AdamW.
STATES = {'100 MB': 51, 'LSS-Swin-T': 96}
# Arms that are measured in own processes as well, and their parts of `side_effects_run`.
PROCESSES = {'no save': 'no save', 'stock': 'save by stock', 'ours': 'save'}
PARTS = ('lost', 'hook', 'fence', 'interference')


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement.

    Attributes:
        states: Keys of `STATES`.
        shapes: Keys of `SHAPES`.
        arms: Keys of `ARMS`.
        rounds: Number of rounds that count, for each state and shape.
        warm_up: Number of rounds that do not count: before the first shape of a state, and before
            each other shape.
    """

    states: list[str]
    shapes: list[str]
    arms: list[str]
    rounds: int
    warm_up: tuple[int, int]


QUICK = Plan(['100 MB'], ['sleep', 'python'], ['no save', 'stock', 'ours'], 2, (1, 0))
FULL = Plan(list(STATES), list(SHAPES), list(ARMS), 9, (2, 1))


class Probes:
    """Copy and write of as many bytes as a checkpoint has: the least that a save can take.

    Args:
        folder: Folder on the disk of the checkpoints.
        size: Bytes of a checkpoint.
    """

    def __init__(self, folder: str, size: int) -> None:
        self._path = os.path.join(folder, 'probe')
        self._source, self._target = np.ones(size, np.uint8), np.zeros(size, np.uint8)
        self.seconds: dict[str, list[float]] = {'memcpy': [], 'raw write + fsync': []}

    def run(self, name: str) -> None:
        """Time one probe.

        Args:
            name: Key of `seconds`.
        """
        start = time.perf_counter()
        if name == 'memcpy':
            np.copyto(self._target, self._source)
        else:
            with open(self._path, 'wb', buffering=0) as file:
                left = self._source.data
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        self.seconds[name].append(time.perf_counter() - start)
        if name != 'memcpy':
            os.remove(self._path)


def losses(taken: dict[str, list[Round]]) -> dict[str, dict[str, Timing]]:
    """Return the lost time of each arm and its parts, relative to "no save" of the same round."""
    found: dict[str, dict[str, Timing]] = {}
    for name, rounds in taken.items():
        lost = [one.lost(none.usual) for one, none in zip(rounds, taken['no save'])]
        found[name] = {part: Timing([one[part] for one in lost]) for part in PARTS}
    return found


def measure_checkpoint(quick: bool) -> Report:
    """Time all arms with all shapes of a step; measure the memory of a save."""
    report = Report('checkpoint')
    plan = QUICK if quick else FULL
    # Not in /tmp, which may be in memory.
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-', dir='.') as folder:
        for state in plan.states:
            _measure_time(report, state, plan, folder)
            _measure_memory(report, state, folder)
    _measure_processes(report, quick)
    report.notes.append(
        f'lost: sum over the iterations of (time - median of "no save" in the same round), from '
        f'the one that saves until the save is durable (stock: until its call has returned) and '
        f'{AFTER} more; "no save" shows the noise of the measurement. All arms share one training '
        'and differ in their checkpoint hook. hook: in the checkpoint hook; fence: the optimizer '
        'waits for the snapshot; interference: the rest. '
        'Medians [quartiles] of the rounds; x stock: of the ratios of each round.'
    )
    return report


def _measure_time(report: Report, state: str, plan: Plan, folder: str) -> None:
    with contextlib.ExitStack() as closing:
        arms: dict[str, Arm] = {}
        for name in plan.arms:
            shared = next(iter(arms.values()), None)
            arms[name] = Arm(name, STATES[state], folder, shared)
            closing.callback(arms[name].close)
        size = arms['ours'].state_bytes
        probes = Probes(folder, size)
        table = report.add_table(
            f'{state}: one save of {size / 1e6:.0f} MB; ms',
            ('step', 'arm', 'iterations', *PARTS, 'x stock'),
            left=('step', 'arm'),
        )
        for shape in plan.shapes:
            is_first = shape == plan.shapes[0]
            warm_up = plan.warm_up[0 if is_first else 1]
            taken = _take_shape(shape, arms, probes, warm_up + plan.rounds)
            if is_first and warm_up:
                _add_first(report, state, shape, {name: each[0] for name, each in taken.items()})
            counted = {name: each[warm_up:] for name, each in taken.items()}
            _add_rounds(report, table, state, shape, counted)
    for name, seconds in probes.seconds.items():
        timing = Timing(seconds)
        report.arms[f'{state}, {name}'] = dict(timing.figures(), bytes=size)
        speed = size / timing.median / 1e9
        report.notes.append(f'{state}: {name} of the same size {timing} ms ({speed:.2f} GB/s)')


def _take_shape(
    shape: str, arms: dict[str, Arm], probes: Probes, rounds: int
) -> dict[str, list[Round]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(SHAPES[shape].threads or threads)
    try:
        work = SHAPES[shape].work
        work()
        works: dict[str, Callable[[], Any]] = {
            name: functools.partial(arm.run, work) for name, arm in arms.items()
        }
        works.update({name: functools.partial(probes.run, name) for name in probes.seconds})
        taken = take_rounds(works, rounds)
    finally:
        torch.set_num_threads(threads)
    return {name: taken[name] for name in arms}


def _add_rounds(
    report: Report, table: Table, state: str, shape: str, taken: dict[str, list[Round]]
) -> None:
    found = losses(taken)
    ratios = {name: ratio(parts['lost'], found['stock']['lost']) for name, parts in found.items()}
    for name, parts in found.items():
        steps = Timing([each.usual for each in taken[name]])
        iterations = [len(each.seconds) for each in taken[name]]
        figures: dict[str, Any] = {part: parts[part].figures() for part in PARTS}
        figures.update(step=steps.figures(), iterations=iterations)
        figures.update(to_stock=ratios[name].plain_figures())
        report.arms[f'{state}, {shape}, {name}'] = figures
        table.add_row(
            f'{shape}, {1e3 * steps.median:.1f} ms' if name == 'no save' else '',
            name,
            f'{statistics.median(iterations):.0f}',
            parts['lost'].text(1, 1e3),
            *(f'{1e3 * parts[part].median:.1f}' for part in PARTS[1:]),
            ratios[name].text(3),
        )
    table.add_section()
    report.at_most(f'{state}, {shape}: lost, x stock', ratios['ours'].median, MAX_LOST[shape])


def _add_first(report: Report, state: str, shape: str, rounds: dict[str, Round]) -> None:
    """Report the first save of a run apart from the rounds: ours allocates its buffers then."""
    parts = []
    for name in ('ours', 'stock'):
        lost = rounds[name].lost(rounds['no save'].usual)
        figures = {f'{part}_ms': 1e3 * lost[part] for part in PARTS}
        report.arms[f'{state}, {shape}, {name}, first save'] = figures
        parts.append(
            f'{name} {figures["lost_ms"]:.0f} ms (hook {figures["hook_ms"]:.0f}, '
            f'fence {figures["fence_ms"]:.0f})'
        )
    report.notes.append(f'{state}: the first save of a run, {shape}: lost {", ".join(parts)}')


def _measure_processes(report: Report, quick: bool) -> None:
    """Measure a save in own processes, which shows its effect on the steps after it."""
    state = next(iter(STATES))
    parts, options = list(PROCESSES.values()), ['--width', str(STATES[state])]
    found = measure_side_effects(report, parts, [PROCESSES['ours']], quick, *options)
    lost = {}
    for name, part in PROCESSES.items():
        lost[name] = Timing([each.lost for each in found[part] if each.lost is not None])
        report.arms[f'own processes, {part}']['lost'] = lost[name].figures()
        report.notes.append(f'{state}, own processes, {part}: lost {lost[name]} ms')
    to_stock = ratio(lost['ours'], lost['stock'])
    report.arms[f'own processes, {PROCESSES["ours"]}']['to_stock'] = to_stock.plain_figures()
    bar = MAX_LOST['matmul 2']
    report.at_most(f'{state}, own processes: lost, x stock', to_stock.median, bar)


def _measure_memory(report: Report, state: str, folder: str) -> None:
    """Measure the peak memory of a save in fresh processes, which share no allocations."""
    for name in ('stock', 'ours'):
        module = 'mmtempo.benchmarks.checkpoint.memory'
        command = [sys.executable, '-m', module, name, str(STATES[state]), f'{folder}/{name}']
        found = process_memory.peak_of(command)
        if found is None:
            report.notes.append('peak memory: not measured here, it needs /proc/PID/smaps_rollup')
            return
        size, extra = found
        report.arms[f'{state}, peak memory, {name}'] = dict(
            state_bytes=size, extra_bytes=extra, times_state=extra / size
        )
        report.notes.append(
            f'{state}: peak extra memory while saving, {name}: {extra / 1e6:.0f} MB, '
            f'{extra / size:.2f} x state'
        )
        if name == 'ours':
            report.at_most(f'{state}: peak extra memory, x state', extra / size, MAX_MEMORY)
