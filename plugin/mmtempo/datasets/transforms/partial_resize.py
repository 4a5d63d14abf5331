"""Resize a part of an image with the same result as after a resize of the whole."""

from __future__ import annotations

import math

import cv2
import numpy as np

# The maximum shift of the sampled positions, in pixels of the source.
TOLERANCE = 1 / 128
# The maximum number of extra pixels to resize in search of a cut with a smaller shift.
REACH = 64


def resize_part(image: np.ndarray, size: tuple[int, int], box: tuple) -> np.ndarray:
    """Return `cv2.resize(image, size)[top:bottom, left:right]`, bilinear, without the rest.

    The image is cut where a pixel boundary of the result is within `TOLERANCE` of one of the
    source, so that OpenCV samples the same positions. Where no such boundary is near, nothing is
    cut off on that side.

    Args:
        image: The whole image.
        size: Width and height of the resized whole.
        box: Top, bottom, left and right of the part, in pixels of the result; parts outside of
            the result are omitted, as by a slice.
    """
    height, width = image.shape[:2]
    top, bottom, left, right = box
    first_row, last_row, above = _cut(height, size[1], top, bottom)
    first_column, last_column, before = _cut(width, size[0], left, right)
    # Factors instead of a size make OpenCV use the scale of the whole.
    resized = cv2.resize(
        image[first_row:last_row, first_column:last_column],
        None,
        fx=size[0] / width,
        fy=size[1] / height,
        interpolation=cv2.INTER_LINEAR,
    )
    return resized[above : above + bottom - top, before : before + right - left]


def nearest_indices(source: int, target: int) -> np.ndarray:
    """Return the source index of each pixel of a nearest-neighbour `cv2.resize`."""
    line = np.arange(source, dtype=np.float32)[None]
    return cv2.resize(line, (target, 1), interpolation=cv2.INTER_NEAREST)[0].astype(np.intp)


def _cut(source: int, target: int, start: int, stop: int) -> tuple[int, int, int]:
    """Return the needed slice of the source, and the pixels of its result before `start`."""
    scale = source / target
    begin = 0
    # At the edge OpenCV repeats a pixel instead of reading its neighbour.
    latest = start - math.ceil(1 / scale)
    if latest > 0:
        candidates = np.arange(latest, max(latest - REACH, 0) - 1, -1)
        positions = candidates * scale
        shifts = np.abs(positions - np.rint(positions))
        best = int(shifts.argmin())
        if shifts[best] <= TOLERANCE:
            begin = int(candidates[best])
    end = min(math.ceil(stop * scale) + 2, source)
    return round(begin * scale), end, start - begin
