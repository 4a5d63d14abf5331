"""Resizing a part of an image as if the whole had been resized."""

from __future__ import annotations

import math

import cv2
import numpy as np

# How far aside pixels may be taken, in pixels of the source.
TOLERANCE = 1 / 128
# How many more pixels are resized in search of a place that is not as far aside.
REACH = 64


def resize_part(image: np.ndarray, size: tuple[int, int], box: tuple) -> np.ndarray:
    """`cv2.resize(image, size)[top:bottom, left:right]` without the rest; bilinear.

    The image is cut where a pixel boundary of the result falls on one of the source, or within
    `TOLERANCE` of it, so that OpenCV takes its samples from the same places. Where there is none
    near, nothing is cut off on that side.

    Args:
        image: The whole image.
        size: Width and height that the whole would be resized to.
        box: Top, bottom, left and right of the part, in pixels of the result; what is
            beyond it is left out, as by a slice.
    """
    height, width = image.shape[:2]
    top, bottom, left, right = box
    first_row, last_row, above = _cut(height, size[1], top, bottom)
    first_column, last_column, before = _cut(width, size[0], left, right)
    # With factors instead of a size OpenCV keeps to the scale of the whole.
    resized = cv2.resize(
        image[first_row:last_row, first_column:last_column],
        None,
        fx=size[0] / width,
        fy=size[1] / height,
        interpolation=cv2.INTER_LINEAR,
    )
    return resized[above : above + bottom - top, before : before + right - left]


def nearest_indices(source: int, target: int) -> np.ndarray:
    """Which pixel each of the result is a copy of, when `cv2.resize` takes the nearest."""
    line = np.arange(source, dtype=np.float32)[None]
    return cv2.resize(line, (target, 1), interpolation=cv2.INTER_NEAREST)[0].astype(np.intp)


def _cut(source: int, target: int, start: int, stop: int) -> tuple[int, int, int]:
    """What part of the source is needed, and how many pixels of its result come before `start`."""
    scale = source / target
    begin = 0
    # At its edge OpenCV repeats a pixel instead of looking at its neighbour.
    latest = start - math.ceil(1 / scale)
    if latest > 0:
        candidates = np.arange(latest, max(latest - REACH, 0) - 1, -1)
        places = candidates * scale
        aside = np.abs(places - np.rint(places))
        best = int(aside.argmin())
        if aside[best] <= TOLERANCE:
            begin = int(candidates[best])
    end = min(math.ceil(stop * scale) + 2, source)
    return round(begin * scale), end, start - begin
