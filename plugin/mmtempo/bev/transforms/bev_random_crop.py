"""Crops the image and its calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module()
class BEVRandomCrop(BaseTransform):
    """Cut a window of fixed size out of the image at a random place.

    The calibration moves with it; the BEV label does not change: what the window
    no longer shows is still there, and the network has to learn to live with it.

    Required keys: ``img``, ``calibration``.

    Args:
        size: Width and height of the window, at most those of the image.
    """

    def __init__(self, size: Sequence[int]) -> None:
        self.size = (int(size[0]), int(size[1]))
        if min(self.size) < 1:
            raise ValueError(f'BEVRandomCrop.size must be positive, found {tuple(size)}')

    def transform(self, results: dict) -> dict:
        height, width = results['img'].shape[:2]
        if self.size[0] > width or self.size[1] > height:
            raise ValueError(
                f'BEVRandomCrop.size = {self.size} (width, height) does not fit into the '
                f'image of {width} x {height}; resize first or crop less'
            )
        left = np.random.randint(width - self.size[0] + 1)
        top = np.random.randint(height - self.size[1] + 1)
        results['img'] = results['img'][top : top + self.size[1], left : left + self.size[0]]
        results['img_shape'] = results['img'].shape[:2]
        results['calibration'] = results['calibration'].cropped(left, top, *self.size)
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(size={self.size})'
