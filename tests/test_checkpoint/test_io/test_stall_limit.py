"""A stall is a value that does not change, and not a long time."""

from __future__ import annotations

from mmtempo.checkpoint.io.stall_limit import StallLimit


def test_slow_progress_is_no_stall() -> None:
    now = [0.0]
    limit = StallLimit(10.0, clock=lambda: now[0])
    for value in range(20):
        now[0] += 9.0
        assert not limit.is_reached(value)
    now[0] += 9.0
    assert not limit.is_reached(19)
    now[0] += 1.0
    assert limit.is_reached(19)


def test_restart_resets_the_time() -> None:
    now = [0.0]
    limit = StallLimit(10.0, clock=lambda: now[0])
    assert not limit.is_reached(3)
    now[0] = 10.0
    assert limit.is_reached(3)
    limit.restart()
    assert not limit.is_reached(3)
    now[0] = 20.0
    assert limit.is_reached(3)
