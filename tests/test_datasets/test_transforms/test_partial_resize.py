"""A resized part is close to the part of the resized whole, and no more is resized."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from mmtempo.datasets.transforms.partial_resize import REACH, nearest_indices, resize_part
from tests.testing.transforms_against_stock import picture


@pytest.mark.parametrize('image', ['noise', 'edges'])
def test_error_is_bounded_for_extreme_images(image: str) -> None:
    generator = np.random.default_rng(0)
    source = generator.integers(0, 256, (300, 400, 3), dtype=np.uint8)
    if image == 'edges':
        source = (np.indices((300, 400)).sum(0) % 2 * 255).astype(np.uint8)
    for _ in range(60):
        width, height = (int(side) for side in generator.integers(150, 700, 2))
        top, left = generator.integers(0, height - 99), generator.integers(0, width - 99)
        box = int(top), int(top) + 100, int(left), int(left) + 100
        part = resize_part(source, (width, height), box)
        whole = cv2.resize(source, (width, height))
        error = np.abs(part.astype(int) - whole[box[0] : box[1], box[2] : box[3]])
        assert error.max() <= 5


def test_only_the_part_and_a_margin_are_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    resized = []
    resize, image = cv2.resize, picture(400, 300)

    def count(source: np.ndarray, *args: Any, **kwargs: Any) -> np.ndarray:
        result = resize(source, *args, **kwargs)
        resized.append(result.shape)
        return result

    monkeypatch.setattr(cv2, 'resize', count)
    resize_part(image, (800, 450), (200, 300, 500, 600))
    ((height, width, _),) = resized
    assert 100 <= height <= 110
    assert 100 <= width <= 110
    resized.clear()
    resize_part(image, (717, 391), (200, 300, 500, 600))
    ((height, width, _),) = resized
    assert width <= 100 + REACH + 10
    assert height <= 100 + REACH + 10


def test_nearest_indices_equal_those_of_opencv() -> None:
    generator = np.random.default_rng(0)
    for source, target in generator.integers(1, 500, (60, 2)):
        column = generator.integers(0, 256, (source, 1), dtype=np.uint8)
        expected = cv2.resize(column, (1, int(target)), interpolation=cv2.INTER_NEAREST)
        np.testing.assert_array_equal(column[nearest_indices(source, target)], expected)


@pytest.mark.parametrize('factor', [(2, 1), (3, 2), (1, 2)])
def test_part_on_pixel_boundaries_equals_the_whole(factor: tuple[int, int]) -> None:
    image = picture(120, 96)
    width, height = 120 * factor[0] // factor[1], 96 * factor[0] // factor[1]
    part = resize_part(image, (width, height), (24, 48, 30, 60))
    np.testing.assert_array_equal(part, cv2.resize(image, (width, height))[24:48, 30:60])
