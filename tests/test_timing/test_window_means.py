"""Means over windows, of the device and of ranks."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.timing.window_means import WindowMeans


def means(*windows: dict[str, Any]) -> dict[str, Any]:
    found = WindowMeans()
    for window in windows:
        found.add(window)
    return found.figures()


def look(time: float, utilisation: float | None, *throttle: str) -> dict[str, Any]:
    device = dict(utilisation=utilisation, throttle=[*throttle])
    return dict(memory=dict(time=time, device=device))


def test_no_figures_without_measurements() -> None:
    assert (
        means()
        == means({}, dict(memory=None), dict(memory=dict(device={})), dict(ranks=None))
        == {}
    )


def test_device_busy_is_the_mean_of_distinct_samples() -> None:
    windows = look(1.0, 0.5), look(2.0, 1.0), look(2.0, 1.0), look(3.0, None), {}, look(4.0, 0.6)
    assert means(*windows) == dict(device_busy=dict(mean=pytest.approx(0.7), looks=3))


def test_idle_device_counts_as_a_sample() -> None:
    assert means(look(1.0, 0.0)) == dict(device_busy=dict(mean=0.0, looks=1))


def test_throttling_is_a_share_of_distinct_samples() -> None:
    both = 'power limit', 'temperature'
    windows = [look(1.0, 1.0, *both), look(2.0, 1.0), look(2.0, 1.0, *both), look(3.0, None, *both)]
    windows += look(4.0, 1.0, 'temperature'), look(5.0, 0.0, 'temperature')
    assert means(*windows)['device_throttled'] == {'power limit': 0.25, 'temperature': 0.75}
    assert 'device_throttled' not in means(look(1.0, 1.0))


def test_usual_rank_is_the_most_frequent_slowest() -> None:
    windows = [
        dict(ranks=dict(data=dict(max=0.1 * n, rank=r, min=0.01 * n)))
        for n, r in ((1, 3), (2, 3), (6, 1))
    ]
    assert means(*windows[:2], {}, windows[2]) == dict(
        ranks=dict(
            data=dict(
                max=pytest.approx(0.6),
                rank=1,
                min=0.06,
                mean=pytest.approx(0.3),
                least=pytest.approx(0.03),
                usual=3,
                often=2,
                of=3,
            )
        )
    )
