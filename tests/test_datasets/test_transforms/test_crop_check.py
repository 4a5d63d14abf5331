"""The check of a crop's classes agrees with stock's, whatever it samples or counts."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.datasets.transforms import crop_check
from mmtempo.datasets.transforms.crop_check import is_varied


def by_sorting(crop: np.ndarray, ignore: int, ratio: float) -> bool:
    present, counts = np.unique(crop, return_counts=True)
    counts = counts[present != ignore]
    return len(counts) > 1 and np.max(counts) / np.sum(counts) < ratio


@pytest.mark.parametrize('exact', [crop_check.EXACT, 100])
def test_check_agrees_with_sorting_at_the_limit(
    exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_check_agrees_with_sorting_where_the_sample_misleads(ignore: int) -> None:
    generator = np.random.default_rng(ignore + 1)
    found = []
    for _ in range(300):
        shape = generator.integers(1, 70, 2)
        crop = generator.integers(0, generator.integers(1, 9), shape, dtype=np.uint8)
        crop[generator.random(shape) < generator.random()] = generator.choice([0, 1, 2, 255])
        # The sampled labels are of one class, the others may be of another one.
        crop[:: crop_check.STEP, :: crop_check.STEP] = generator.choice([0, 2, 3, 255])
        for ratio in (0.2, 0.5, 0.75, 0.99):
            found.append(is_varied(crop, ignore, ratio))
            assert found[-1] == by_sorting(crop, ignore, ratio)
    assert 100 < sum(found) < len(found) - 100


@pytest.mark.parametrize('shape', [(1, 1), (1, 4), (4, 1), (2, 2), (17, 3)])
def test_check_agrees_with_sorting_of_few_labels(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(2)
    for _ in range(50):
        crop = generator.choice(np.array([0, 4, 255], np.uint8), shape)
        for ratio in (0.3, 0.75):
            assert is_varied(crop, 255, ratio) == by_sorting(crop, 255, ratio)


def test_one_class_suffices_for_most_crops(monkeypatch: pytest.MonkeyPatch) -> None:
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
