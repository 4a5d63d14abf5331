"""Functions of a byte, written out as a table of 256, or as arithmetic that gives the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import cv2
import numpy as np

BYTES = np.arange(256, dtype=np.uint8)
BYTES.flags.writeable = False
LEVELS = BYTES.astype(np.float64)
# OpenCV rounds; less a half it cuts off, but for what is within float32's errors of a whole number.
# So much more keeps products that are whole ones, 0 among them, away from there.
ASIDE = 2.0**-13
# So near to a whole number float32 may round a sum to it.
EDGE = 2.0**-10
# Takes an image of three channels of bytes, and where to put what becomes of them: there even.
Change = Callable[[np.ndarray, np.ndarray], None]


def look_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """`table[values]` for bytes, several times as fast."""
    # OpenCV drops a last dimension of 1.
    return cv2.LUT(values, table).reshape(values.shape)


def adding(beta: float, table: Callable[[], np.ndarray]) -> Change:
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


def multiplying(factor: float, table: Callable[[], np.ndarray]) -> Change:
    """Of each byte the product with a number, less what is behind the point, from 0 to 255.

    Args:
        factor: The number.
        table: Gives the same as a table; asked for where OpenCV's float32 is not exact enough.
    """
    return partial(_multiply, factor) if _is_sure(factor) else partial(_look_up, table())


def _is_sure(factor: float) -> bool:
    """Whether OpenCV's product, in float32 and cut off, is right for all bytes for sure."""
    if not 0 <= factor <= 256:  # OpenCV drops signs, and int32 has an end
        return False
    # Beyond 256 all are 255.
    count = 256 if factor <= 1 else math.ceil(257 / factor)
    factor = float(np.float32(factor))
    if _is_far_from_whole(factor, count - 1, 1.5 * ASIDE):
        return True  # most are, which is seen in a third of the time that the multiples take
    places = LEVELS[:count] * factor + ASIDE
    return bool(np.abs(places - np.rint(places)).min() > ASIDE / 2)


def _is_far_from_whole(factor: float, most: int, distance: float) -> bool:
    """Whether 1 to `most` times a number all are farther than that from whole numbers.

    No multiple comes nearer to one than by the denominators of the number's continued fraction.
    """
    before, rest = 1.0, factor % 1.0
    times_before, times = 0, 1
    while rest > distance:
        whole = int(before / rest)
        before, rest = rest, before - whole * rest
        times_before, times = times, times_before + whole * times
        if times > most:
            return before > distance
    return False


def _multiply(factor: float, image: np.ndarray, out: np.ndarray) -> None:
    cv2.convertScaleAbs(image, dst=out, alpha=factor, beta=ASIDE - 0.5)


def _add(amounts: tuple[int, ...], image: np.ndarray, out: np.ndarray) -> None:
    cv2.add(image, amounts, dst=out)


def _subtract(amounts: tuple[int, ...], image: np.ndarray, out: np.ndarray) -> None:
    cv2.subtract(image, amounts, dst=out)


def _look_up(table: np.ndarray, image: np.ndarray, out: np.ndarray) -> None:
    cv2.LUT(image, table, dst=out)
