"""Crops equal those of stock, from the same random numbers."""

from __future__ import annotations

import numpy as np
import pytest
from mmcv.transforms.utils import cache_random_params
from mmseg.datasets.transforms import RandomCrop

from mmtempo.datasets.transforms.fast_random_crop import FastRandomCrop
from tests.testing.transforms_against_stock import read_only, run, same, sample


@pytest.mark.parametrize(
    'arguments',
    [
        dict(crop_size=16),
        dict(crop_size=(24, 40), cat_max_ratio=0.75),
        dict(crop_size=(24, 40), cat_max_ratio=0.3),  # few crops pass
        dict(crop_size=(16, 16), cat_max_ratio=0.6, ignore_index=2),
        dict(crop_size=(16, 16), cat_max_ratio=0.6, ignore_index=-100),
        dict(crop_size=(100, 30), cat_max_ratio=0.5),  # higher than the image
    ],
)
def test_crops_equal_those_of_stock(arguments: dict) -> None:
    ours, stock = FastRandomCrop(**arguments), RandomCrop(**arguments)
    for seed in range(24):
        results = read_only(sample(seed))
        same(run(ours, results, seed), run(stock, results, seed))


def test_crops_of_other_label_types_equal_those_of_stock() -> None:
    ours, stock = (cls((24, 24), cat_max_ratio=0.4) for cls in (FastRandomCrop, RandomCrop))
    for seed in range(12):
        results = sample(seed)
        results['gt_seg_map'] = results['gt_seg_map'].astype(np.int64) - 3
        same(run(ours, results, seed), run(stock, results, seed))


def test_byte_labels_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    unique = np.unique
    monkeypatch.setattr(np, 'unique', lambda *a, **k: calls.append(1) or unique(*a, **k))
    FastRandomCrop((24, 24), cat_max_ratio=0.4)(sample())
    assert calls == []
    RandomCrop((24, 24), cat_max_ratio=0.4)(sample())
    assert calls


def test_cached_randomness_repeats_the_crop() -> None:
    ours = FastRandomCrop((16, 16), cat_max_ratio=0.75)
    with cache_random_params(ours):
        first, second = (ours(sample())['img'] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    # Our decorator must not add to the list of the stock class.
    assert RandomCrop._methods_with_randomness == ['crop_bbox']
    assert FastRandomCrop._methods_with_randomness == ['crop_bbox']
    assert {ours(sample())['img'].tobytes() for _ in range(30)} != {first.tobytes()}
