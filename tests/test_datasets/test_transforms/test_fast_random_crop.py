"""The same crops as stock's, from the same draws."""

from __future__ import annotations

import numpy as np
import pytest
from mmcv.transforms.utils import cache_random_params
from mmseg.datasets.transforms import RandomCrop

from mmtempo.datasets.transforms import crop_check
from mmtempo.datasets.transforms.crop_check import is_varied
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
def test_is_what_stock_crops(arguments: dict) -> None:
    ours, stock = FastRandomCrop(**arguments), RandomCrop(**arguments)
    for seed in range(24):
        results = read_only(sample(seed))
        same(run(ours, results, seed), run(stock, results, seed))


def test_labels_that_are_no_bytes_are_counted_too() -> None:
    ours, stock = (cls((24, 24), cat_max_ratio=0.4) for cls in (FastRandomCrop, RandomCrop))
    for seed in range(12):
        results = sample(seed)
        results['gt_seg_map'] = results['gt_seg_map'].astype(np.int64) - 3
        same(run(ours, results, seed), run(stock, results, seed))


def test_bytes_are_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    unique = np.unique
    monkeypatch.setattr(np, 'unique', lambda *a, **k: calls.append(1) or unique(*a, **k))
    FastRandomCrop((24, 24), cat_max_ratio=0.4)(sample())
    assert calls == []
    RandomCrop((24, 24), cat_max_ratio=0.4)(sample())
    assert calls


def by_sorting(crop: np.ndarray, ignore: int, ratio: float) -> bool:
    present, counts = np.unique(crop, return_counts=True)
    counts = counts[present != ignore]
    return len(counts) > 1 and np.max(counts) / np.sum(counts) < ratio


@pytest.mark.parametrize('exact', [crop_check.EXACT, 100])
def test_variety_is_stock_s_at_the_limit(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crop_check, 'EXACT', exact)
    crop = np.zeros((10, 40), np.uint8)
    for count in (0, 1, 99, 100, 101):
        crop.ravel()[:count] = 7
        for ratio in (0.75, 300 / 400, 0.7475):
            assert is_varied(crop, 255, ratio) == by_sorting(crop, 255, ratio)
    for value in (255, 254):
        for ignore in (255, 300, -1):
            crop[:] = value
            assert is_varied(crop, ignore, 0.9) is False
            crop[0, :3] = 1, 1, 2
            assert is_varied(crop, ignore, 0.9) == by_sorting(crop, ignore, 0.9)


@pytest.mark.parametrize('ignore', [255, 0, 2, 300, -1])
def test_variety_is_stock_s_whatever_few_labels_suggest(ignore: int) -> None:
    generator = np.random.default_rng(ignore + 1)
    found = []
    for _ in range(300):
        shape = generator.integers(1, 70, 2)
        crop = generator.integers(0, generator.integers(1, 9), shape, dtype=np.uint8)
        crop[generator.random(shape) < generator.random()] = generator.choice([0, 1, 2, 255])
        # The labels that are looked at are of one class, and the others may be of another one.
        crop[:: crop_check.STEP, :: crop_check.STEP] = generator.choice([0, 2, 3, 255])
        for ratio in (0.2, 0.5, 0.75, 0.99):
            found.append(is_varied(crop, ignore, ratio))
            assert found[-1] == by_sorting(crop, ignore, ratio)
    assert 100 < sum(found) < len(found) - 100


@pytest.mark.parametrize('shape', [(1, 1), (1, 4), (4, 1), (2, 2), (17, 3)])
def test_few_labels(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(2)
    for _ in range(50):
        crop = generator.choice(np.array([0, 4, 255], np.uint8), shape)
        for ratio in (0.3, 0.75):
            assert is_varied(crop, 255, ratio) == by_sorting(crop, 255, ratio)


def test_one_class_mostly_tells_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    count = crop_check._counts
    monkeypatch.setattr(
        crop_check,
        '_counts',
        lambda crop, ignore: counted.append(crop.size) or count(crop, ignore),
    )
    crop = np.zeros((64, 64), np.uint8)
    for rows, expected in ((0, False), (8, False), (24, True), (40, True), (64, False)):
        crop[:rows] = 7
        assert is_varied(crop, 255, 0.75) is expected
    assert not counted


def test_draws_can_be_shared_as_stock_s() -> None:
    ours = FastRandomCrop((16, 16), cat_max_ratio=0.75)
    with cache_random_params(ours):
        first, second = (ours(sample())['img'] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    # What we mark is none of stock's business, and is marked once.
    assert RandomCrop._methods_with_randomness == ['crop_bbox']
    assert FastRandomCrop._methods_with_randomness == ['crop_bbox']
    assert {ours(sample())['img'].tobytes() for _ in range(30)} != {first.tobytes()}
