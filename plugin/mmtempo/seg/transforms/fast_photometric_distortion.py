"""Photometric distortion of bytes by tables."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import PhotoMetricDistortion

from .tables import BYTES, map_image


class _Step(NamedTuple):
    """What becomes of each byte: of one channel of HSV, or, with None, of each one of BGR.

    Attributes:
        channel: Of HSV: 0 or 1.
        table: What becomes of each byte; of a hue see `shift`.
        factor: What the bytes are multiplied by; None where the table is another.
        shift: What is added to a hue, modulo 180.
    """

    channel: int | None
    table: np.ndarray = BYTES
    factor: float | None = None
    shift: int = 0


@TRANSFORMS.register_module()
class FastPhotoMetricDistortion(PhotoMetricDistortion):
    """mmseg's `PhotoMetricDistortion`, the same to the bit, without a detour over float32.

    Each of its steps is a function of one byte, so it is computed for 256 values, by stock's own
    arithmetic, and looked up for each pixel; steps that follow on each other are one table. Where
    arithmetic on bytes gives the same for all 256, it is done instead of looking up. It draws the
    same random numbers from numpy's generator in the same order, and never writes into the image
    that it gets.

    Images that are not of three channels of bytes are distorted as stock does it.

    Args:
        brightness_delta: Brightness is changed by up to this. Defaults to 32.
        contrast_range: Limits of the factor on contrast. Defaults to (0.5, 1.5).
        saturation_range: Limits of the factor on saturation. Defaults to (0.5, 1.5).
        hue_delta: Hue is changed by up to this, in steps of two degrees. Defaults to 18.
    """

    def transform(self, results: dict) -> dict:
        image = results['img']
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            return super().transform(results)
        distorted = None
        for step in self._draw():
            distorted = _apply(step, image if distorted is None else distorted, distorted)
        results['img'] = image if distorted is None else distorted
        return results

    def _draw(self) -> list[_Step]:
        """The steps, drawn in stock's order."""
        steps = []
        if np.random.randint(2):
            beta = np.random.uniform(-self.brightness_delta, self.brightness_delta)
            steps.append(_Step(None, self.convert(BYTES, beta=beta)))
        contrast_first = np.random.randint(2)
        if contrast_first:
            steps += self._draw_contrast()
        if np.random.randint(2):
            factor = np.random.uniform(self.saturation_lower, self.saturation_upper)
            steps.append(_Step(1, self.convert(BYTES, alpha=factor), factor))
        if np.random.randint(2):
            shift = np.random.randint(-self.hue_delta, self.hue_delta)
            steps.append(_Step(0, shift=shift))
        if not contrast_first:
            steps += self._draw_contrast()
        # Only these follow on each other: between the others stock rounds in BGR.
        if len(steps) > 1 and steps[0].channel is None and steps[1].channel is None:
            steps[:2] = [_Step(None, steps[1].table[steps[0].table])]
        return steps

    def _draw_contrast(self) -> list[_Step]:
        if not np.random.randint(2):
            return []
        factor = np.random.uniform(self.contrast_lower, self.contrast_upper)
        return [_Step(None, self.convert(BYTES, alpha=factor), factor)]


def _apply(step: _Step, image: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Do one step; `out` is the image itself where it may be written into, else None."""
    if step.channel is None:
        return map_image(image, step.table, step.factor, out)
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV, dst=out)
    if step.channel == 0:
        _turn(hsv, step.shift)
    else:
        # All three channels and a copy of one are faster than to take that out and put it back.
        hsv[..., 1] = map_image(hsv, step.table, step.factor)[..., 1]
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR, dst=hsv)


def _turn(hsv: np.ndarray, shift: int) -> None:
    """Shift the hue, below 180, in place."""
    back = -shift % 180
    # Hues below `back` become 256 - back and more when it is taken off; 180 more than right is
    # less then, and else more. The other channels stay.
    other = cv2.add(hsv, (180 - back, 0, 0, 0))
    rows = hsv.reshape(len(hsv), -1)
    row = np.zeros_like(rows[0])
    row[::3] = back
    np.subtract(rows, row, out=rows)
    cv2.min(hsv, other, dst=hsv)
