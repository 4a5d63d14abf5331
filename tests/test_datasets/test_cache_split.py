"""Only transforms with the same result at each draw come before the cache."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform

from mmtempo.datasets.cache_split import same
from mmtempo.datasets.cached_dataset import CachedDataset
from mmtempo.utils.rng import generator_states
from tests.testing.cached_numbers import Decode, Holds, Numbers, Pack, Pass, Shift, drawn, numbers

pytestmark = [
    pytest.mark.skipif(not hasattr(os, 'fork'), reason='processes are forked'),
    pytest.mark.usefixtures('own_temporary_folder'),
]


class Counts(BaseTransform):
    """A transform with a different result each time, without random numbers."""

    calls = 0

    def transform(self, results: dict) -> dict:
        self.calls += 1
        return results | dict(calls=self.calls)


class AtTimes(BaseTransform):
    """A transform that is seldom different, without random numbers."""

    calls = 0

    def transform(self, results: dict) -> dict:
        self.calls += 1
        return results | dict(flag=self.calls == 6)


def test_known_random_transforms_are_refused(folder: str) -> None:
    pipeline = [Decode(), dict(type='RandomFlip', prob=0.5), Pack()]
    for until in ('Pack', 2, 3):
        with pytest.raises(
            ValueError,
            match=rf"until={until!r}: RandomFlip is random .*2 of 3.*set until='Decode' or an",
        ):
            CachedDataset(Numbers(folder, pipeline=pipeline), until=until)
    nested = [
        Decode(),
        dict(type='EachCamera', transforms=[dict(type='BEVRandomCrop', size=(9, 9))]),
    ]
    with pytest.raises(ValueError, match='BEVRandomCrop in EachCamera is random'):
        CachedDataset(Numbers(folder, pipeline=nested), until=2)
    cached = CachedDataset(Numbers(folder, pipeline=pipeline))
    assert 'cached: Decode; per draw: RandomFlip, Pack' in cached.describe()
    with pytest.raises(
        ValueError, match='nothing to cache .* its first transform, RandomFlip, is random'
    ):
        CachedDataset(Numbers(folder, pipeline=pipeline[1:]))


def test_random_transforms_of_mmseg_are_refused(folder: str) -> None:
    with pytest.raises(ValueError, match='PhotoMetricDistortion is random'):
        CachedDataset(
            Numbers(folder, pipeline=[Decode(), dict(type='mmseg.PhotoMetricDistortion')]), until=2
        )


@pytest.mark.parametrize(
    'generator', [np.random.default_rng(1), np.random.RandomState(1), torch.Generator()]
)
def test_transforms_with_own_generators_are_refused(folder: str, generator: Any) -> None:
    draw = getattr(generator, 'normal', generator)
    for value in ([dict(a=Holds(generator))], draw):
        with pytest.raises(ValueError, match=f'{type(generator).__name__} in Holds is random'):
            CachedDataset(numbers(folder, Holds(value)), until=2)


@pytest.mark.parametrize(
    ('transform', 'what'),
    [
        (Shift(), 'Shift draws random numbers'),
        (Counts(), 'Counts returns different results for the same'),
    ],
)
def test_unknown_random_transforms_are_found_by_trial(
    folder: str, transform: BaseTransform, what: str
) -> None:
    dataset = numbers(folder, Pass(), transform, Pack())
    before = generator_states()
    with pytest.raises(
        ValueError, match=rf"until='Pack': {what}.* .transform 3 of 4.*set until='Pass'"
    ):
        CachedDataset(dataset, until='Pack')
    cached = CachedDataset(dataset)
    assert same(before, generator_states())
    assert cached.pipeline.count == 2


def test_seldom_random_transforms_are_found_by_trial(folder: str) -> None:
    with pytest.raises(ValueError, match='AtTimes returns different results for the same sample'):
        CachedDataset(numbers(folder, AtTimes()), until=2)


def test_until_is_the_last_of_a_type_and_by_default_all(folder: str) -> None:
    transforms = [Pass(), Decode(), Pass(), Pack()]
    assert CachedDataset(Numbers(folder, pipeline=transforms), until='Pass').pipeline.count == 3
    cached = CachedDataset(Numbers(folder, pipeline=transforms))
    assert cached.pipeline.count == 4
    for _ in range(2):
        assert same(drawn(cached, range(6)), drawn(numbers(folder, Pack()), range(6)))


@pytest.mark.parametrize('until', ['Missing', 0, 4, -1, True, 1.5])
def test_wrong_until_is_refused(folder: str, until: Any) -> None:
    with pytest.raises(ValueError, match=rf'CachedDataset.until.*{until!r}'):
        CachedDataset(numbers(folder), until=until)


NAN = np.array([np.nan, 1.0], dtype=object)
TENSOR = torch.ones(2)


@pytest.mark.parametrize(
    ('one', 'other', 'expected'),
    [
        (np.arange(3), np.arange(3), True),
        (np.arange(3), np.arange(3, dtype=np.int32), False),
        (np.arange(4), np.arange(4).reshape(2, 2), False),
        (np.array([0.0]), np.array([-0.0]), False),
        (NAN, NAN.copy(), True),
        (TENSOR, TENSOR.clone(), True),
        (TENSOR, TENSOR.long(), False),
        (TENSOR, -TENSOR, False),
        (dict(a=1, b=[np.ones(2)]), dict(a=1, b=[np.ones(2)]), True),
        (dict(a=1, b=2), dict(b=2, a=1), False),
        ([1], (1,), False),
        (float('nan'), float('nan'), True),
        (Holds([1]), Holds([1]), True),
        (Holds([1]), Holds([2]), False),
    ],
)
def test_same_compares_to_the_bit(one: Any, other: Any, expected: bool) -> None:
    assert same(one, other) is expected
