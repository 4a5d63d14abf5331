"""Photometric distortion of bytes by tables."""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import PhotoMetricDistortion

from .tables import BYTES


class _Step(NamedTuple):
    """What becomes of each byte: of one channel of HSV, or, with None, of each one of BGR."""

    channel: int | None
    table: np.ndarray


@TRANSFORMS.register_module()
class FastPhotoMetricDistortion(PhotoMetricDistortion):
    """mmseg's `PhotoMetricDistortion`, the same to the bit, without a detour over float32.

    Each of its steps is a function of one byte, so it is computed for 256 values, by stock's own
    arithmetic, and looked up for each pixel; steps that follow on each other are one table. It
    draws the same random numbers from numpy's generator in the same order, and never writes into
    the image that it gets.

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
            steps.append(_Step(1, self.convert(BYTES, alpha=factor)))
        if np.random.randint(2):
            shift = np.random.randint(-self.hue_delta, self.hue_delta)
            steps.append(_Step(0, ((BYTES.astype(int) + shift) % 180).astype(np.uint8)))
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
        return [_Step(None, self.convert(BYTES, alpha=factor))]


def _apply(step: _Step, image: np.ndarray, out: np.ndarray | None) -> np.ndarray:
    """Do one step; `out` is the image itself where it may be written into, else None."""
    if step.channel is None:
        return cv2.LUT(image, step.table, dst=out)
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV, dst=out)
    # Taking a channel out and putting it back is faster than a table for each of the three.
    channel = cv2.extractChannel(hsv, step.channel)
    cv2.insertChannel(cv2.LUT(channel, step.table, dst=channel), hsv, step.channel)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR, dst=hsv)
