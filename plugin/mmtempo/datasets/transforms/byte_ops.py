"""Functions of a byte as a table of 256 values, or as arithmetic with equal results."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np

BYTES = np.arange(256, dtype=np.uint8)
BYTES.flags.writeable = False
# The same in rows of one pixel, for which OpenCV uses no vector instructions.
NARROW = np.stack([BYTES, BYTES], 1)[:, :1]
# Added to a product before OpenCV rounds it, so that it truncates; 2**-13 keeps integers exact.
TRUNCATED = 2.0**-13 - 0.5
# Within this distance of an integer, float32 may round a sum to it.
EDGE = 2.0**-10
# A function of an image of three channels of bytes, and of an output, which may be the image.
ByteOp = Callable[[np.ndarray, np.ndarray], None]


def look_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return `table[values]` for bytes, several times faster."""
    # OpenCV drops a last dimension of size 1.
    return cv2.LUT(values, table).reshape(values.shape)


def adding(beta: float, table: Callable[[], np.ndarray]) -> ByteOp:
    """Return a function that adds a number to each byte, truncates and clips it to 0 to 255.

    Args:
        beta: The number.
        table: Returns the 256 results; called where a sum might round to an integer.
    """
    whole = math.floor(beta)
    if not EDGE < beta - whole < 1 - EDGE:
        return partial(_look_up, table())
    # Beyond 255 all results are 0 or 255.
    amount = min(abs(whole), 255)
    return partial(_add if whole > 0 else _subtract, (amount, amount, amount, 0))


def multiplying(factor: float, table: Callable[[], np.ndarray]) -> ByteOp:
    """Return a function that multiplies each byte, truncates and clips it to 0 to 255.

    OpenCV rounds products. For some factors one of the 256 results differs from the table, which
    is looked up then; that takes three times as long for an image.

    Args:
        factor: The factor.
        table: Returns the 256 results.
    """
    expected = table()
    products = (cv2.convertScaleAbs(one, alpha=factor, beta=TRUNCATED) for one in (BYTES, NARROW))
    if all(np.array_equal(found.ravel(), expected) for found in products):
        return partial(_multiply, factor)
    return partial(_look_up, expected)


def _multiply(factor: float, image: np.ndarray, out: np.ndarray) -> None:
    cv2.convertScaleAbs(image, dst=out, alpha=factor, beta=TRUNCATED)


def _add(amounts: tuple[int, ...], image: np.ndarray, out: np.ndarray) -> None:
    cv2.add(image, amounts, dst=out)


def _subtract(amounts: tuple[int, ...], image: np.ndarray, out: np.ndarray) -> None:
    cv2.subtract(image, amounts, dst=out)


def _look_up(table: np.ndarray, image: np.ndarray, out: np.ndarray) -> None:
    cv2.LUT(image, table, dst=out)
