"""Judge a run by a catalogue of findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmtempo.timing.causes import STEP
from mmtempo.timing.statistics import EVEN, is_even
from mmtempo.utils.units import counted, percent

from . import data, machine, periodic, ranks, step
from .figures import FEW, SHORT, WORTH, Advice, Finding, RunFigures
from .step import device_is_the_limit

CLEAR = 0.2  # share of the time that a short run shows beyond doubt

# All findings, each a pure function of the figures. Every sentence of a verdict is one of theirs,
# or of `_without_findings`. `tests/testing/verdict_cases.py` has figures for each key where it is
# true, and where it is nearly true.
CATALOGUE: tuple[Callable[[RunFigures], Iterable[Finding]], ...] = (
    machine.other_processes, machine.cpu_quota, machine.memory, machine.page_faults,
    data.slow_samples, data.too_few_batches, data.late_batches,
    periodic.evaluation, periodic.epochs, periodic.hooks, periodic.unnamed_hooks,
    step.collections, step.compilations, step.new_shapes, step.device_memory, step.throttled,
    step.slowdowns, step.copies, step.idle_device, step.delays, step.outside_of_phases,
    ranks.late_data, ranks.slow_steps, machine.warnings,
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A judged run: headline, reasons and advised overrides; the largest cost first."""

    headline: str
    why: list[str] = field(default_factory=list)
    change: list[Advice] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def judge(summary: Mapping[str, Any]) -> Verdict:
    """Judge the run of a `tempo_summary.json`.

    Reports only what costs more than 3 % of the time, or what may end the run. Each override can
    be passed to --cfg-options, also all of them together.

    Args:
        summary: The content of the file; any key may be missing.
    """
    run = RunFigures(summary)
    if not run.total or not run.iterations:
        return _of([Finding('nothing', 0.0, 'Nothing was measured.')])
    if run.iterations < FEW:
        few = counted(run.iterations, 'iteration')
        headline = f'Too short to judge: {few}; at least {FEW} are needed.'
        return _of([Finding('nothing', 0.0, headline)])
    findings = [finding for find in CATALOGUE for finding in find(run)]
    if run.iterations < SHORT:
        findings = [one for one in findings if one.is_risk or _is_clear(run, one)]
    findings.sort(key=lambda one: (not one.comes_first, -one.seconds))
    if not findings or not findings[0].headline:
        findings.insert(0, _without_findings(run, is_risky=bool(findings)))
    return _of(findings)


def _of(findings: list[Finding]) -> Verdict:
    changes: dict[str, Advice] = {}
    for finding in findings:
        for advice in finding.change:  # the larger cost decides about a key
            changes.setdefault(advice.override.partition('=')[0], advice)
    why = [line for finding in findings for line in finding.why]
    return Verdict(findings[0].headline, why, list(changes.values()), findings)


def _is_clear(run: RunFigures, finding: Finding) -> bool:
    """Return whether a finding holds for a short run, of which periodic work is no typical part."""
    return not finding.is_periodic and run.share(finding.seconds) > CLEAR


def _without_findings(run: RunFigures, is_risky: bool) -> Finding:
    """Describe a run without a cost that justifies a change: where its time goes."""
    computing = run.share(sum(run.seconds(name) for name in STEP))
    steps = f' {percent(computing)} of the time in forward, backward and step.' if computing else ''
    if run.iterations < SHORT:
        count = counted(run.iterations, 'iteration')
        headline = f'Short run: {count}; a verdict needs {SHORT}.{steps}'
        return Finding('short', 0.0, headline)
    why = device_is_the_limit(run)
    cv = run.summary.get('cv')
    if cv is not None and not is_even(cv):
        why.append(f'Iteration times vary by {percent(cv)} (target: below {percent(EVEN)}).')
    headline = 'Healthy: nothing to change.'
    if is_risky:
        headline = f'No recurring cost exceeds {percent(WORTH)} of the time.'
    return Finding('healthy', 0.0, headline + steps, why)
