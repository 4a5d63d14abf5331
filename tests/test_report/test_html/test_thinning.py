"""Long runs stay small."""

from __future__ import annotations

import pytest

from mmtempo.report.html.thinning import largest, thin_windows


def windows(count: int, run: int = 0) -> list[dict]:
    return [
        dict(iter=50 * (i + 1), iterations=50, seconds=5.0 + i % 2, it_per_s=50 / (5.0 + i % 2),
             steady=10.0, phases=dict(data=1.0, forward=4.0 + i % 2), run=run)
        for i in range(count)
    ]  # fmt: skip


def test_few_are_left_as_they_are() -> None:
    found = windows(800)
    assert thin_windows(found) == found
    assert thin_windows([]) == []


def test_many_are_put_together_and_nothing_is_lost() -> None:
    found = windows(4001)
    thin = thin_windows(found)
    assert len(thin) <= 800
    assert sum(line['iterations'] for line in thin) == 50 * 4001
    assert sum(line['phases']['data'] for line in thin) == pytest.approx(4001)
    assert thin[0]['iter'] == 300
    assert thin[0]['it_per_s'] == pytest.approx(300 / 33)
    assert thin[0]['steady'] == pytest.approx(10)
    assert thin[-1]['iter'] == found[-1]['iter']


def test_a_sliver_at_the_end_goes_to_the_window_before() -> None:
    last = dict(iter=201, iterations=1, seconds=2.0, steady=0.5, run=0, phases=dict(data=2.0))
    *rest, end = thin_windows([*windows(4), last])
    assert [line['iter'] for line in rest] == [50, 100, 150]
    assert (end['iter'], end['iterations'], end['phases']['data']) == (201, 51, 3.0)
    assert end['steady'] == pytest.approx(51 / 7)
    alone = dict(last, run=1)
    assert thin_windows([*windows(4), alone])[-1] == alone


def test_runs_are_not_mixed() -> None:
    thin = thin_windows(windows(5) + windows(5, run=1), points=4)
    assert [(line['run'], line['iterations']) for line in thin] == [
        (0, 150), (0, 100), (1, 150), (1, 100),
    ]  # fmt: skip


def test_the_costliest_stalls_in_their_order() -> None:
    stalls = [dict(iter=i, lost=i % 10) for i in range(100)]
    assert [line['iter'] for line in largest(stalls, 10)] == list(range(9, 100, 10))
    assert largest([dict(iter=2), dict(iter=1)]) == [dict(iter=1), dict(iter=2)]
