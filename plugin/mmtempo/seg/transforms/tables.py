"""Functions of a byte, written out as a table of 256."""

from __future__ import annotations

import cv2
import numpy as np

BYTES = np.arange(256, dtype=np.uint8)
BYTES.flags.writeable = False
# OpenCV rounds; less a half it cuts off, but for what is within float32's errors of a whole number.
# So much more keeps products that are whole ones, 0 among them, away from there.
ASIDE = 2.0**-13


def look_up(values: np.ndarray, table: np.ndarray) -> np.ndarray:
    """`table[values]` for bytes, several times as fast."""
    # OpenCV drops a last dimension of 1.
    return cv2.LUT(values, table).reshape(values.shape)


def map_image(
    image: np.ndarray, table: np.ndarray, factor: float | None = None, out: np.ndarray | None = None
) -> np.ndarray:
    """`cv2.LUT`, or arithmetic that gives the same for every byte, in half the time or less.

    Args:
        image: Of three channels of bytes.
        table: What becomes of each byte.
        factor: What bytes are multiplied by, if that is what the table says. Defaults to None.
        out: Where to; may be the image. Defaults to None: new memory.
    """
    if factor is not None and _is_product(table, factor):
        return cv2.convertScaleAbs(image, dst=out, alpha=factor, beta=ASIDE - 0.5)
    more = int(table[128]) - 128
    if np.array_equal((BYTES.astype(int) + more).clip(0, 255), table):
        change = cv2.add if more > 0 else cv2.subtract
        return change(image, (abs(more), abs(more), abs(more), 0), dst=out)
    return cv2.LUT(image, table, dst=out)


def _is_product(table: np.ndarray, factor: float) -> bool:
    """Whether OpenCV's product, in float32 and cut off, is the table for sure."""
    places = BYTES * float(np.float32(factor)) + ASIDE
    is_sure = (np.abs(places - np.rint(places)) > ASIDE / 2) | (places > 256)
    return bool(is_sure.all()) and np.array_equal(np.floor(places).clip(max=255), table)
