"""What each policy is worth on the user's own machine, with the user's own config."""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmtempo.policies import POLICIES

from .harness import Report, Timing

AS_GIVEN = 'as given'
CONFIG = 'configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py'
# The table of the field notes: an RTX card with 32 GB, LSS + Swin on nuScenes. Nobody here has
# measured it. Iterations a second, memory.
NOTES = {
    'baseline': ('7.45', '10 GB'),
    'balanced': ('5-6', '15-18 GB'),
    'speed_first': ('8-9', '8-10 GB'),
    'memory_first': ('3.64 to 5', '18-20 GB'),
}
HEAD = (
    'policy', 'batch', 'it/s', 'samples/s', 'x as given', 'variation', 'waiting for data',
    'memory', 'notes: it/s', 'notes: memory',
)  # fmt: skip
FIGURES = ('it_per_s', 'samples_per_s', 'cv', 'data_share', 'memory_bytes')


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        rounds: Of all policies, in random order.
        warm_up: Iterations of a training that do not count.
        iterations: That do.
    """

    rounds: int
    warm_up: int
    iterations: int


QUICK, FULL = Plan(1, 3, 5), Plan(3, 10, 50)


class PolicyError(RuntimeError):
    """A training that could not be measured."""


def run_policy(config: str, policy: str, options: Sequence[str], plan: Plan) -> dict[str, Any]:
    """Train for a few iterations, in a fresh process; returns what it has measured."""
    with tempfile.TemporaryDirectory(prefix='mmtempo-benchmark-') as folder:
        command = [sys.executable, '-m', 'mmtempo.benchmarks.family_run', config]
        command += ['--work-dir', folder]
        command += ['--warm-up', str(plan.warm_up), '--iterations', str(plan.iterations)]
        if policy != AS_GIVEN:
            command += ['--tempo', policy]
        if options:
            command += ['--cfg-options', *options]
        found = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if found.returncode:
        lines = found.stderr.strip().splitlines() or ['it said nothing']
        raise PolicyError(f'{config} by the policy {policy!r}: {lines[-1]}')
    return json.loads(found.stdout.strip().splitlines()[-1])


def measure_family(
    quick: bool,
    config: str = CONFIG,
    options: Sequence[str] = (),
    run: Callable[[str, str, Sequence[str], Plan], dict[str, Any]] = run_policy,
) -> Report:
    """Train by each policy, one after the other, and in turns.

    Args:
        quick: One round of few iterations.
        config: Of the training. Defaults to `CONFIG`.
        options: As of --cfg-options. Defaults to ().
        run: Measures one training. Defaults to `run_policy`.
    """
    plan = QUICK if quick else FULL
    report = Report('family')
    names = [AS_GIVEN, *POLICIES]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    order, failed = random.Random(0), {}
    for _ in range(plan.rounds):
        turn = [name for name in names if name not in failed]
        order.shuffle(turn)
        for name in turn:
            try:
                found[name].append(run(config, name, options, plan))
            except PolicyError as error:
                failed[name] = str(error)
    measured = {name: rows for name, rows in found.items() if rows and name not in failed}
    for name, rows in measured.items():
        report.arms[name] = _figures(rows)
    report.notes += [_markdown(report, config, plan), *failed.values()]
    if failed and not measured:
        raise PolicyError('\n'.join(failed.values()))
    return report


def _figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = dict(n=len(rows), samples=rows[0]['samples'])
    for key in FIGURES:
        values = [row[key] for row in rows if row[key] is not None]
        if values:
            found[key] = statistics.median(values)
            if len(values) > 1:
                found[f'{key}_iqr'] = list(Timing(values).quartiles)
    return found


def _markdown(report: Report, config: str, plan: Plan) -> str:
    """The table, to be pasted into an issue or a README."""
    given = report.arms.get(AS_GIVEN, {})
    lines = [
        f'{os.path.basename(config)}, {plan.rounds} rounds of {plan.iterations} iterations, each '
        f'in a fresh process, interleaved; medians [quartiles]. {_machine(report.machine)}',
        '',
        f'| {" | ".join(HEAD)} |',
        '|---' * len(HEAD) + '|',
    ]
    for name, arm in report.arms.items():
        speed, base = arm.get('samples_per_s'), given.get('samples_per_s')
        cells = [
            name,
            str(arm['samples'] or '?'),
            _spread(arm, 'it_per_s'),
            _spread(arm, 'samples_per_s'),
            f'{speed / base:.2f}' if speed and base else '',
            f'{100 * arm["cv"]:.1f} %',
            f'{100 * arm["data_share"]:.1f} %',
            f'{arm["memory_bytes"] / 1e6:,.0f} MB' if 'memory_bytes' in arm else '',
            *NOTES.get(name, ('', '')),
        ]
        lines.append(f'| {" | ".join(cells)} |')
    what = 'peak memory of the device'
    if not report.machine['accelerator']:
        what = 'bytes that autograd keeps of one batch for the backward pass (there is no device)'
    lines += [
        '',
        f'batch: samples of an iteration, which is an update. memory: {what}. The last two columns '
        'are those of the field notes (an RTX card, LSS + Swin on nuScenes), not measured here.',
    ]
    return '\n'.join(lines)


def _machine(found: dict[str, Any]) -> str:
    device = found['accelerator'] or 'no accelerator'
    return f'{found["cpu"]}, {found["cores"]} cores, {device}, torch {found["torch"]}.'


def _spread(arm: dict[str, Any], key: str) -> str:
    if key not in arm:
        return ''
    text = f'{arm[key]:.3g}'
    if f'{key}_iqr' in arm:
        low, high = arm[f'{key}_iqr']
        text += f' [{low:.3g}, {high:.3g}]'
    return text
