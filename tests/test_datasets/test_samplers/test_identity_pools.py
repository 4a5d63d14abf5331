"""Columns are read from any source, and identities are permuted with a minimum distance."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch

from mmtempo.datasets.samplers.identity_pools import (
    Dealer,
    Deck,
    Pool,
    Pools,
    Repeats,
    endless_identities,
    read_columns,
)
from mmtempo.datasets.samplers.pk_sampler import PKSampler
from tests.testing.galleries import Columns, Gallery


def pool_of(codes: list[int]) -> Pool:
    return Pool(np.array(codes), np.ones(len(codes), dtype=bool), max(codes) + 1)


def test_columns_come_from_one_read_of_each_info() -> None:
    dataset = Gallery([dict(identity=n % 3, view=f'v{n}') for n in range(6)])
    sources = dict(identity='identity', view=lambda info: info['view'].upper())
    columns = read_columns(dataset, sources)
    assert columns == dict(identity=[0, 1, 2, 0, 1, 2], view=[f'V{n}' for n in range(6)])
    assert dataset.reads == 6


def test_pool_groups_samples_and_excludes_those_without_identity() -> None:
    pool = pool_of([1, 0, -1, 1, 0, 1])
    assert pool.sizes.tolist() == [2, 3]
    assert [pool.of(identity) for identity in range(2)] == [[1, 4], [0, 3, 5]]


def test_deck_draws_each_sample_once_before_any_again() -> None:
    deck = Deck(pool_of([0] * 5), random.Random(0))
    for _ in range(3):
        assert sorted(deck.draw(0, []) for _ in range(5)) == [*range(5)]
    assert deck.draw(0, [*range(5)]) is None


def test_dealer_repeats_samples_of_a_small_identity_only() -> None:
    repeats = Repeats()
    dealer = Dealer(Pools(pool_of([0, 0, 1, 1, 1, 1])), 4, random.Random(0), repeats)
    assert sorted(Counter(dealer.deal(0)).items()) == [(0, 2), (1, 2)]
    assert sorted(dealer.deal(1)) == [2, 3, 4, 5]
    assert repeats == Repeats(visits=2, short_visits=1, repeated=2)


@pytest.mark.parametrize(('count', 'distinct'), [(1, 1), (2, 1), (5, 5), (7, 2), (7, 6), (40, 8)])
def test_identities_recur_after_the_minimum_distance(count: int, distinct: int) -> None:
    order = endless_identities(count, distinct, random.Random(0))
    drawn = [next(order) for _ in range(20 * count)]
    assert set(Counter(drawn).values()) == {20}
    window = min(max(distinct, count // 2 + 1), count)
    for start in range(len(drawn) - window):
        assert len(set(drawn[start : start + window])) == window
    if count == 40:
        assert drawn[:40] != drawn[40:80] != drawn[80:120]


def test_datasets_without_metadata_are_refused() -> None:
    with pytest.raises(TypeError, match='neither get_data_info.*nor get_data_column'):
        PKSampler(torch.arange(12), 2, 2, seed=0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='neither get_data_info'):
        PKSampler(Columns({}), 2, 2, seed=0)
    with pytest.raises(ValueError, match=r'must return one value per sample \(12\), found 3'):
        PKSampler(Columns(dict(identity=[1, 2, 3])), 2, 2, seed=0)
