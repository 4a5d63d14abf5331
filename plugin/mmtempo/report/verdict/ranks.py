"""Findings about one rank that all others wait for."""

from __future__ import annotations

from collections.abc import Iterator

from mmtempo.utils.units import counted, duration, percent

from .figures import Finding, RunFigures

OFTEN = 0.5  # share of the log points at which a rank must be the slowest to be reported


def late_data(run: RunFigures) -> Iterator[Finding]:
    """Find a rank that waits longer for its data than this one."""
    ranks = (run.summary.get('ranks') or {}).get('data') or {}
    rank, mean, of = ranks.get('usual'), ranks.get('mean'), ranks.get('of')
    if not rank or mean is None or not of or (ranks.get('often') or 0) < OFTEN * of:
        return
    own = run.seconds('data') / run.iterations
    seconds = (mean - own) * run.iterations
    if run.is_worth(seconds):
        why = [
            f'The slowest rank waits {duration(mean)} per iteration for data, rank 0 '
            f'{duration(own)}.',
            f'Rank {rank} was the slowest at {ranks["often"]} of {counted(of, "log point")}.',
            'The other ranks wait for it in their backward pass. Check the workers, cores and disk '
            'of its node.',
        ]
        headline = f'Late data on rank {rank} costs {percent(run.share(seconds))} of the time.'
        yield Finding('rank: data', seconds, headline, why)


def slow_steps(run: RunFigures) -> Iterator[Finding]:
    """Find a rank that is slow itself."""
    ranks = (run.summary.get('ranks') or {}).get('step') or {}
    rank, mean, least, of = (ranks.get(key) for key in ('usual', 'mean', 'least', 'of'))
    if (
        rank is None
        or mean is None
        or least is None
        or not of
        or (ranks.get('often') or 0) < OFTEN * of
    ):
        return
    seconds = (mean - least) * run.iterations
    if run.is_worth(seconds):
        why = [
            f'Without data and backward pass, the slowest rank takes {duration(mean)} per '
            f'iteration, the fastest {duration(least)}.',
            f'Rank {rank} was the slowest at {ranks["often"]} of {counted(of, "log point")}.',
            'The other ranks wait for it. Check its hooks, and the load and clocks of its node.',
        ]
        headline = f'Slow steps on rank {rank} cost {percent(run.share(seconds))} of the time.'
        yield Finding('rank: step', seconds, headline, why)
