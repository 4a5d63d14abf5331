"""Measure all policies of `train.py --tempo` with a given config on this machine."""

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
# Iterations per second and memory as of the field notes (an RTX card with 32 GB, LSS + Swin on
# nuScenes); they were not measured by this benchmark.
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
    """Extent of the measurement.

    Attributes:
        rounds: Number of rounds of all policies, each in random order.
        warm_up: Iterations at the start of a training that do not count.
        iterations: Iterations that count.
    """

    rounds: int
    warm_up: int
    iterations: int


QUICK, FULL = Plan(1, 3, 5), Plan(3, 10, 50)


class PolicyError(RuntimeError):
    """Error of a training by a policy, which could not be measured."""


def run_policy(config: str, policy: str, options: Sequence[str], plan: Plan) -> dict[str, Any]:
    """Train for a few iterations in a fresh process; return the measured figures."""
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
        lines = found.stderr.strip().splitlines() or ['no message on stderr']
        raise PolicyError(
            f'{config}: the training by policy {policy!r} failed with exit code '
            f'{found.returncode}: {lines[-1]}'
        )
    return json.loads(found.stdout.strip().splitlines()[-1])


def measure_family(
    quick: bool,
    config: str = CONFIG,
    options: Sequence[str] = (),
    run: Callable[[str, str, Sequence[str], Plan], dict[str, Any]] = run_policy,
) -> Report:
    """Train by each policy, one training at a time, interleaved.

    Args:
        quick: Whether to measure one round of few iterations.
        config: Path of the config to train. Defaults to `CONFIG`.
        options: Overrides of the config, as of `--cfg-options`. Defaults to ().
        run: Function that measures one training. Defaults to `run_policy`.

    Raises:
        PolicyError: If no policy could be measured.
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
    """Return medians and quartiles of the trainings by one policy."""
    found: dict[str, Any] = dict(n=len(rows), samples=rows[0]['samples'])
    for key in FIGURES:
        values = [row[key] for row in rows if row[key] is not None]
        if values:
            found[key] = statistics.median(values)
            if len(values) > 1:
                found[f'{key}_iqr'] = list(Timing(values).quartiles)
    return found


def _markdown(report: Report, config: str, plan: Plan) -> str:
    """Return the figures as a Markdown table, for an issue or a README."""
    given = report.arms.get(AS_GIVEN, {})
    lines = [
        f'{os.path.basename(config)}, {plan.rounds} rounds of {plan.iterations} iterations, each '
        f'in a fresh process, interleaved; medians [quartiles]. {_describe(report.machine)}',
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
    memory = 'peak memory of the device'
    if not report.machine['accelerator']:
        memory = 'bytes that autograd keeps of one batch for the backward pass (no device found)'
    lines += [
        '',
        f'batch: samples per iteration; each iteration is an update. memory: {memory}. notes: '
        'field notes (an RTX card, LSS + Swin on nuScenes), not measured here.',
    ]
    return '\n'.join(lines)


def _describe(found: dict[str, Any]) -> str:
    device = found['accelerator'] or 'no accelerator'
    return f'{found["cpu"]}, {found["cores"]} cores, {device}, torch {found["torch"]}.'


def _spread(arm: dict[str, Any], key: str) -> str:
    """Format a figure of an arm with its quartiles; '' if it was not measured."""
    if key not in arm:
        return ''
    text = f'{arm[key]:.3g}'
    if f'{key}_iqr' in arm:
        low, high = arm[f'{key}_iqr']
        text += f' [{low:.3g}, {high:.3g}]'
    return text
