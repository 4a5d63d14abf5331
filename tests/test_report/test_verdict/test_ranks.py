"""One rank that all others wait for."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report.verdict import judge
from tests.testing.summaries import summary


def ranks(**changes: Any) -> dict[str, Any]:
    data = dict(max=0.05, rank=3, mean=0.04, usual=3, often=45, of=50, **changes)
    return dict(data=data, step=dict(max=0.14, rank=0, mean=0.14, usual=0, often=50, of=50))


def test_rank_with_late_data() -> None:
    verdict = judge(summary(ranks=ranks()))
    assert verdict.headline == 'Late data on rank 3 costs 28 % of the time.'
    assert verdict.why[:3] == [
        'The slowest rank waits 40.0 ms per iteration for data, rank 0 600 us.',
        'Rank 3 was the slowest at 45 of 50 log points.',
        'The other ranks wait for it in their backward pass. Check the workers, cores and disk of '
        'its node.',
    ]


@pytest.mark.parametrize(
    'change', [dict(usual=0), dict(often=20), dict(mean=0.004), dict(usual=None)]
)
def test_ranks_without_a_slowest(change: dict[str, Any]) -> None:
    found = ranks()
    found['data'].update(change)
    assert judge(summary(ranks=found)).headline.startswith('Healthy')


def test_rank_with_slow_steps() -> None:
    found = ranks()
    found['data'].update(mean=0.0)
    found['step'].update(usual=1, mean=0.06, least=0.02, often=48)
    verdict = judge(summary(ranks=found))
    assert verdict.headline == 'Slow steps on rank 1 cost 28 % of the time.'
    assert verdict.why[:2] == [
        'Without data and backward pass, the slowest rank takes 60.0 ms per iteration, the fastest '
        '20.0 ms.',
        'Rank 1 was the slowest at 48 of 50 log points.',
    ]
    found['step'].update(often=20)
    assert judge(summary(ranks=found)).headline.startswith('Healthy')
