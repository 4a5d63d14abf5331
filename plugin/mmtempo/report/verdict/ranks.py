"""Findings about one rank that all others wait for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mmtempo.utils.units import counted, duration, percent

from .figures import Finding, RunFigures

OFTEN = 0.5  # share of the log points at which a rank must be the slowest to be reported


def late_data(run: RunFigures) -> Iterator[Finding]:
    """Find a rank that waits longer for its data than this one."""
    rank, mean, _, often = _usually_slowest(run, 'data')
    if not rank or mean is None:
        return
    own = run.seconds('data') / run.iterations
    seconds = (mean - own) * run.iterations
    if run.is_worth(seconds):
        why = [
            f'The slowest rank waits {duration(mean)} per iteration for data, rank 0 '
            f'{duration(own)}.',
            often,
            'The other ranks wait for it in their backward pass. Check the workers, cores and disk '
            'of its node.',
        ]
        headline = f'Late data on rank {rank} costs {percent(run.share(seconds))} of the time.'
        yield Finding('rank: data', seconds, headline, why)


def slow_steps(run: RunFigures) -> Iterator[Finding]:
    """Find a rank that is slow itself."""
    rank, mean, least, often = _usually_slowest(run, 'step')
    if rank is None or mean is None or least is None:
        return
    seconds = (mean - least) * run.iterations
    if run.is_worth(seconds):
        why = [
            f'Without data and backward pass, the slowest rank takes {duration(mean)} per '
            f'iteration, the fastest {duration(least)}.',
            often,
            'The other ranks wait for it. Check its hooks, and the load and clocks of its node.',
        ]
        headline = f'Slow steps on rank {rank} cost {percent(run.share(seconds))} of the time.'
        yield Finding('rank: step', seconds, headline, why)


def _usually_slowest(run: RunFigures, name: str) -> tuple[int | None, Any, Any, str]:
    """Return the rank that was slowest most often, if often enough, its times, and a sentence."""
    ranks = (run.summary.get('ranks') or {}).get(name) or {}
    rank, often, of = ranks.get('usual'), ranks.get('often') or 0, ranks.get('of') or 0
    if not of or often < OFTEN * of:
        rank = None
    text = f'Rank {rank} was the slowest at {often} of {counted(of, "log point")}.'
    return rank, ranks.get('mean'), ranks.get('least'), text
