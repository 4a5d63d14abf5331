"""Recovery of a summary from log lines."""

from __future__ import annotations

import pytest

from mmtempo.report.recovery import memory_of, recovered_summary
from mmtempo.timing.statistics import KEEP


def window(last: int, seconds: float, run: int = 0, **more: object) -> dict:
    return dict(iter=last, iterations=10, seconds=seconds, run=run, **more)


def test_no_lines_give_no_figures() -> None:
    assert recovered_summary([], [], [], [], []) == dict(version=1, warnings=[], stalls=[])


def test_speeds_are_weighted_by_time() -> None:
    windows = [
        window(10, 1.0, steady=20.0, samples_per_s=40.0, lost=0.5, p50=0.05, cv=0.1),
        window(20, 4.0, steady=5.0, samples_per_s=10.0, lost=2.0, p50=0.2, cv=0.3),
        window(30, 5.0, p50=0.2),
    ]
    found = recovered_summary([], windows, [], [], [])
    assert found['it_per_s'] == pytest.approx(3)
    assert found['steady'] == pytest.approx(8)  # 20 iterations in 0.5 + 2 seconds
    assert found['samples_per_s'] == pytest.approx(16)  # 80 samples in 5 seconds
    assert found['samples_per_s_steady'] == pytest.approx(32)
    assert found['lost'] == dict(seconds=2.5, share=0.25, count=0, by_cause={})
    assert found['p50'] == 0.2  # of the median window
    assert 'p95' not in found


def test_only_the_last_run_counts() -> None:
    stalls = [dict(iter=5, lost=1.0, cause='a', run=0), dict(iter=25, lost=2.0, cause='b', run=1)]
    runs = [dict(iter=0, run=0), dict(iter=20, run=1, max_iters=100)]
    found = recovered_summary(runs, [window(10, 1.0), window(30, 2.0, run=1)], stalls, [], [])
    assert (found['iterations'], found['first_iter'], found['last_iter']) == (10, 20, 30)
    assert list(found['lost']['by_cause']) == ['b']


def test_largest_stalls_are_kept() -> None:
    stalls = [dict(iter=i, lost=float(i)) for i in range(KEEP + 5)]
    found = recovered_summary([], [], stalls, [], [])['stalls']
    assert [stall['iter'] for stall in found[:2]] == [KEEP + 4, KEEP + 3]
    assert len(found) == KEEP


def test_memory_has_extremes() -> None:
    samples = [
        dict(ram_used=0.5, shm_free=10, device=dict(allocated=5, throttle=['heat'])),
        dict(ram_used=0.9, shm_free=2, device=dict(allocated=3)),
        dict(ram_used=0.6, shm_free=7, swap_used=None),
    ]
    found = memory_of([dict(memory=sample) for sample in samples] + [{}])
    assert found == dict(
        now=samples[-1], peak=dict(ram_used=0.9, shm_free=2, device=dict(allocated=5))
    )
    assert memory_of([{}]) is None


def test_means_over_windows() -> None:
    windows = [
        window(10, 1.0, memory=dict(time=1.0, device=dict(utilisation=0.5))),
        window(20, 1.0, memory=dict(time=2.0, device=dict(utilisation=0.7)),
               ranks=dict(data=dict(max=0.5, rank=3))),
    ]  # fmt: skip
    found = recovered_summary([], windows, [], [], [])
    assert found['device_busy'] == dict(mean=pytest.approx(0.6), looks=2)
    assert found['ranks']['data']['usual'] == 3


def test_stall_is_divided_by_cause_and_a_span_counts_its_iterations() -> None:
    parts = [
        dict(category='evaluation', cause='evaluation', seconds=2.0),
        dict(category='checkpoint', cause='Saver', seconds=1.0),
    ]
    both = dict(iter=7, lost=3.0, cause='evaluation', category='evaluation', parts=parts)
    span = dict(iter=9, lost=4.0, iterations=40, cause='Saver', category='checkpoint')
    changes = [dict(iter=9, old=0.1, new=0.2, cause='Saver'), dict(iter=3, old=1, new=2, run=1)]
    found = recovered_summary([{}], [window(10, 9.0)], [both, span], [], [], changes)
    assert found['lost']['count'] == 41
    assert found['lost']['by_cause'] == dict(
        evaluation=dict(seconds=2.0, count=1, category='evaluation'),
        Saver=dict(seconds=5.0, count=41, category='checkpoint'),
    )
    assert found['changes'] == changes[:1]
