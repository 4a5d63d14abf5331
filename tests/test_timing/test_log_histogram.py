"""Quantiles of a histogram are within 1.2 % of those of numpy over all values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmtempo.timing.log_histogram import LogHistogram

SECONDS = st.floats(1e-6, 9e4)
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0)


def filled(values: object, **kwargs: float) -> LogHistogram:
    histogram = LogHistogram(**kwargs)
    histogram.add(np.asarray(values, dtype=float))
    return histogram


@settings(max_examples=150, deadline=None)
@given(st.lists(SECONDS, min_size=1, max_size=60), st.integers(1, 59))
def test_quantiles_match_numpy(values: list[float], cut: int) -> None:
    histogram = filled(values[:cut])
    histogram.add(np.array(values[cut:]))
    for q in QUANTILES:
        assert histogram.quantile(q) == pytest.approx(np.quantile(values, q), rel=0.012), q
    assert (histogram.least, histogram.greatest) == (min(values), max(values))
    assert histogram.total == pytest.approx(sum(values))
    assert histogram.count == len(values)


def test_quantiles_within_one_bin_are_interpolated() -> None:
    values = 0.14 * np.exp(np.random.default_rng(0).normal(0, 0.004, 20000))
    histogram = filled(values)
    found = [histogram.quantile(q) for q in (0.05, 0.25, 0.5, 0.75, 0.95)]
    assert found == sorted(set(found))
    assert found == pytest.approx(np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)), rel=0.006)


@pytest.mark.parametrize('middle', np.geomspace(1.01, 1.9, 25))
def test_single_value_of_a_bin_is_placed_in_its_middle(middle: float) -> None:
    assert filled([1.0, middle, 2.0]).quantile(0.5) == pytest.approx(middle, rel=0.006)


def test_quantiles_stay_within_the_observed_range() -> None:
    assert {filled([0.1402] * 9).quantile(q) for q in QUANTILES} == {0.1402}


def test_empty_histogram_has_no_values() -> None:
    histogram = filled([])
    assert histogram.quantile(0.5) is None
    assert (histogram.least, histogram.greatest) == (None, None)
    assert histogram.bars() == ([], [])


def test_nan_is_ignored() -> None:
    histogram = filled([np.nan, 2.0, np.nan])
    assert (histogram.count, histogram.total) == (1, 2.0)


def test_values_outside_the_edges_are_counted() -> None:
    histogram = filled([-1.0, 0.0, 0.0, 1e-9, 1e7])
    assert histogram.count == 5
    assert (histogram.least, histogram.greatest) == (-1.0, 1e7)
    assert histogram.quantile(0.5) == 0.0
    assert histogram.quantile(1.0) == 1e7
    edges, counts = histogram.bars()
    assert sum(counts) == 5
    assert edges[0] > 0  # the axis is logarithmic


def test_memory_does_not_grow() -> None:
    histogram = filled([1.0])
    before = histogram._counts.nbytes
    for block in range(100):
        histogram.add(np.full(1000, 10.0 ** (block % 12 - 6)))
    assert histogram._counts.nbytes == before
    assert histogram.count == 100_001


@pytest.mark.parametrize('most', [1, 7, 60])
def test_bars_are_limited_and_complete(most: int) -> None:
    values = np.exp(np.random.default_rng(1).normal(-2, 1.5, 5000))
    edges, counts = filled(values).bars(most)
    assert len(counts) <= most
    assert len(edges) == len(counts) + 1
    assert sum(counts) == 5000
    assert edges[0] <= values.min()
    assert edges[-1] >= values.max()
    assert counts == np.histogram(values, edges)[0].tolist()
    assert np.allclose(np.diff(np.log(edges)), np.log(edges[1] / edges[0]))


def test_one_value_is_one_bar() -> None:
    edges, counts = filled([0.14] * 9).bars()
    assert counts == [9]
    assert edges[0] <= 0.14 < edges[1]


def test_fewer_bins_are_less_accurate() -> None:
    values = np.exp(np.random.default_rng(2).normal(0, 1, 999))
    assert filled(values, per_decade=20).quantile(0.5) == pytest.approx(np.median(values), rel=0.13)


@pytest.mark.parametrize('kwargs', [dict(least=0), dict(least=2, most=1), dict(per_decade=0)])
def test_invalid_edges_raise(kwargs: dict) -> None:
    with pytest.raises(
        ValueError, match='LogHistogram needs 0 < least < most and per_decade >= 1, found'
    ):
        LogHistogram(**kwargs)


@pytest.mark.parametrize('q', [-0.1, 95])
def test_quantile_outside_0_to_1_raises(q: float) -> None:
    with pytest.raises(ValueError, match='q must be from 0 to 1, found'):
        filled([1.0]).quantile(q)
