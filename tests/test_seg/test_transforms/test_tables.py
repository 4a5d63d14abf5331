"""Tables of bytes, and the arithmetic that stands for them."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mmtempo.seg.transforms import tables
from mmtempo.seg.transforms.tables import BYTES, look_up, map_image

# Of no round size: what is left over behind OpenCV's vectors is computed in another way.
IMAGE = np.random.default_rng(0).permutation(np.tile(BYTES, 27)).reshape(48, 48, 3)


def product(factor: float) -> np.ndarray:
    """As stock multiplies."""
    return np.clip(BYTES.astype(np.float32) * factor, 0, 255).astype(np.uint8)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Tables that were looked up."""
    found: list[np.ndarray] = []
    lut = cv2.LUT

    def look(image: np.ndarray, table: np.ndarray, dst: np.ndarray | None = None) -> np.ndarray:
        found.append(table)
        return lut(image, table, dst=dst)

    monkeypatch.setattr(tables.cv2, 'LUT', look)
    return found


@pytest.mark.parametrize('part', [np.s_[:], np.s_[1:38, 3:40], np.s_[:1, :1]])
def test_brightness_is_added(part: tuple, looked_up: list[np.ndarray]) -> None:
    for more in range(-120, 121):
        table = np.clip(BYTES.astype(int) + more, 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(map_image(IMAGE[part], table), table[IMAGE[part]])
    assert not looked_up


@pytest.mark.parametrize('part', [np.s_[:], np.s_[1:38, 3:40], np.s_[:1, :1]])
def test_contrast_is_multiplied(part: tuple, looked_up: list[np.ndarray]) -> None:
    factors = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 9.0, *np.random.default_rng(1).uniform(0.5, 1.5, 400)]
    for factor in factors:
        table = product(factor)
        np.testing.assert_array_equal(map_image(IMAGE[part], table, factor), table[IMAGE[part]])
    assert len(looked_up) < len(factors) / 10


def test_what_is_nearly_a_whole_number_is_looked_up(looked_up: list[np.ndarray]) -> None:
    for number in range(3, 256, 4):
        factor = (200 - tables.ASIDE) / number
        table = product(factor)
        np.testing.assert_array_equal(map_image(IMAGE, table, factor), table[IMAGE])
    assert len(looked_up) == 64


def test_other_tables_are_looked_up(looked_up: list[np.ndarray]) -> None:
    others = [255 - BYTES, product(1.2)[BYTES[::-1]], np.roll(BYTES, 3), product(0.9)]
    for table in others:
        np.testing.assert_array_equal(map_image(IMAGE, table), table[IMAGE])
    # The factor is not what this table says, or it is below 0.
    for table, factor in ((BYTES[::-1].copy(), 1.1), (product(-0.3), -0.3)):
        np.testing.assert_array_equal(map_image(IMAGE, table, factor), table[IMAGE])
    assert len(looked_up) >= len(others)


@pytest.mark.parametrize('factor', [None, 1.25])
def test_writes_where_it_is_told(factor: float | None) -> None:
    table = product(1.25)
    expected, image = table[IMAGE], IMAGE.copy()
    assert map_image(image, table, factor, out=image) is image
    np.testing.assert_array_equal(image, expected)
    image = IMAGE.copy()
    image.flags.writeable = False
    assert not np.shares_memory(map_image(image, table, factor), image)


@pytest.mark.parametrize('shape', [(4, 6), (4, 6, 1), (4, 6, 3)])
def test_looking_up_keeps_the_shape(shape: tuple[int, ...]) -> None:
    values = IMAGE.ravel()[: int(np.prod(shape))].reshape(shape)
    np.testing.assert_array_equal(look_up(values, 255 - BYTES), 255 - values)
