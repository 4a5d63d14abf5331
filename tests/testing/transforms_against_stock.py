"""Samples for a comparison of a stock transform with ours, under the same seed."""

from __future__ import annotations

import copy
from typing import Any

import cv2
import numpy as np


def picture(width: int = 64, height: int = 48, seed: int = 0) -> np.ndarray:
    """Return an image with smooth colors and noise, similar to a photograph."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    smooth = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).astype(int)
    return np.clip(smooth + generator.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


def labels(width: int = 64, height: int = 48, seed: int = 0, classes: int = 5) -> np.ndarray:
    """Return a label map of 8 x 8 blocks, some of them with the ignore index 255."""
    generator = np.random.default_rng(seed)
    coarse = generator.choice([*range(classes), 255], (height // 8 + 1, width // 8 + 1))
    blocks = coarse.astype(np.uint8).repeat(8, 0).repeat(8, 1)
    return np.ascontiguousarray(blocks[:height, :width])


def sample(seed: int = 0, **size: int) -> dict[str, Any]:
    """Return a sample as the loading transforms return it."""
    image = picture(seed=seed, **size)
    return dict(
        img=image,
        img_shape=image.shape[:2],
        ori_shape=image.shape[:2],
        gt_seg_map=labels(seed=seed, **size),
        seg_fields=['gt_seg_map'],
        reduce_zero_label=False,
        img_path='a.png',
        seg_map_path='b.png',
    )


def run(transform: Any, results: dict, seed: int) -> dict:
    """Return the results and, as `drawn`, the state of NumPy's generator after the transform."""
    np.random.seed(seed)
    results = transform(copy.deepcopy(results))
    return dict(results, drawn=np.random.get_state()[1:3])


def read_only(results: dict) -> dict:
    """Make the arrays of a sample read-only, as a cache returns them."""
    for value in results.values():
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
    return results


def same(ours: Any, stock: Any) -> None:
    np.testing.assert_equal(ours, stock)
    for key, value in stock.items():
        if isinstance(value, np.ndarray):
            assert ours[key].dtype == value.dtype, key
