"""Functions of a byte, written out as a table of 256, or as arithmetic that gives the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np

BYTES = np.arange(256, dtype=np.uint8)
BYTES.flags.writeable = False
# The same in rows of one pixel, which OpenCV computes without vector instructions.
NARROW = np.stack([BYTES, BYTES], 1)[:, :1]
# Added to a product that OpenCV rounds, so that it truncates; the rest keeps whole products whole.
TRUNCATED = 2.0**-13 - 0.5
# So near to a whole number float32 may round a sum to it.
EDGE = 2.0**-10
# Takes an image of three channels of bytes, and where to put what becomes of them: there even.
ByteOp = Callable[[np.ndarray, np.ndarray], None]


def look_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """`table[values]` for bytes, several times as fast."""
    # OpenCV drops a last dimension of 1.
    return cv2.LUT(values, table).reshape(values.shape)


def adding(beta: float, table: Callable[[], np.ndarray]) -> ByteOp:
    """Of each byte the sum with a number, less what is behind the point, from 0 to 255.

    Args:
        beta: The number.
        table: Gives the same as a table; asked for where a sum might be rounded to a whole number.
    """
    more = math.floor(beta)
    if not EDGE < beta - more < 1 - EDGE:
        return partial(_look_up, table())
    # Beyond 255 all are 0 or 255.
    amount = min(abs(more), 255)
    return partial(_add if more > 0 else _subtract, (amount, amount, amount, 0))


def multiplying(factor: float, table: Callable[[], np.ndarray]) -> ByteOp:
    """Return a function that multiplies each byte, truncates and clips it to 0 to 255.

    OpenCV's product rounds; for some factors one of the 256 results differs from the table's,
    which is looked up then. It takes three times as long for an image.

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
