"""Arithmetic on bytes equals the tables that it replaces."""

from __future__ import annotations

from functools import partial

import cv2
import numpy as np
import pytest

from mmtempo.datasets.transforms import byte_ops
from mmtempo.datasets.transforms.byte_ops import BYTES, adding, look_up, multiplying

# Not a multiple of OpenCV's vector size, after which it computes the rest differently.
IMAGE = np.random.default_rng(0).permutation(np.tile(BYTES, 27)).reshape(48, 48, 3)


def product(factor: float) -> np.ndarray:
    """Multiply as stock does."""
    return np.clip(BYTES.astype(np.float32) * factor, 0, 255).astype(np.uint8)


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Return the tables that are looked up from here on."""
    found: list[np.ndarray] = []
    lut = cv2.LUT

    def look(image: np.ndarray, table: np.ndarray, dst: np.ndarray | None = None) -> np.ndarray:
        found.append(table)
        return lut(image, table, dst=dst)

    monkeypatch.setattr(byte_ops.cv2, 'LUT', look)
    return found


def sums(beta: float) -> np.ndarray:
    """Add as stock does."""
    return np.clip(BYTES.astype(np.float32) + beta, 0, 255).astype(np.uint8)


def check(change: byte_ops.ByteOp, table: np.ndarray, image: np.ndarray) -> None:
    """Check a function against its table, with separate output and in place."""
    expected = table[image]
    out = np.empty_like(image)
    change(image, out)
    np.testing.assert_array_equal(out, expected)
    change(image, image)
    np.testing.assert_array_equal(image, expected)


PARTS = pytest.mark.parametrize('part', [np.s_[:], np.s_[1:38, 3:40], np.s_[:1, :1]])


@PARTS
def test_brightness_is_added(part: tuple, looked_up: list[np.ndarray]) -> None:
    betas = np.random.default_rng(2).uniform(-300, 300, 500).tolist()
    for beta in (*betas, -0.5, 0.5, 1e9 + 0.5, -1e9 - 0.5):
        check(adding(beta, partial(sums, beta)), sums(beta), IMAGE[part].copy())
    assert len(looked_up) < len(betas) / 10


@PARTS
def test_contrast_is_multiplied(part: tuple, looked_up: list[np.ndarray]) -> None:
    factors = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 9.0, 257.0, 1e9]
    factors += np.random.default_rng(1).uniform(0.5, 1.5, 400).tolist()
    for factor in factors:
        check(multiplying(factor, partial(product, factor)), product(factor), IMAGE[part].copy())
    assert len(looked_up) < 2 * len(factors) / 10


def test_product_just_below_a_whole_number_is_truncated(looked_up: list[np.ndarray]) -> None:
    """OpenCV rounds 163 * 1.23926... = 201.99994 up."""
    factor = 1.2392635793983016
    check(multiplying(factor, partial(product, factor)), product(factor), IMAGE.copy())
    assert product(factor)[163] == 201
    assert len(looked_up) == 2


@pytest.mark.parametrize('limits', [(0.5, 1.5), (0.0, 5.0), (0.0, 300.0)])
def test_products_of_any_factor_equal_the_table(
    limits: tuple[float, float], looked_up: list[np.ndarray]
) -> None:
    factors = np.random.default_rng(0).uniform(*limits, 3000).tolist()
    for factor in factors:
        check(multiplying(factor, partial(product, factor)), product(factor), IMAGE.copy())
    assert 0 < len(looked_up) < 2 * len(factors) / 20


def test_sum_near_a_whole_number_is_looked_up(looked_up: list[np.ndarray]) -> None:
    for number in range(3, 256, 4):
        for beta in (float(number), number + 1e-6, number - 1e-6, -number - 1e-6):
            check(adding(beta, partial(sums, beta)), sums(beta), IMAGE.copy())
    assert len(looked_up) == 64 * 4 * 2


def test_negative_factor_is_looked_up(looked_up: list[np.ndarray]) -> None:
    check(multiplying(-0.3, partial(product, -0.3)), product(-0.3), IMAGE.copy())
    assert looked_up


def test_table_of_sums_is_computed_for_lookups_only() -> None:
    adding(-3.2, pytest.fail)


@pytest.mark.parametrize('shape', [(4, 6), (4, 6, 1), (4, 6, 3)])
def test_lookup_keeps_the_shape(shape: tuple[int, ...]) -> None:
    values = IMAGE.ravel()[: int(np.prod(shape))].reshape(shape)
    np.testing.assert_array_equal(look_up(values, 255 - BYTES), 255 - values)
