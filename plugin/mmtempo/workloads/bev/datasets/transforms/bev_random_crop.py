"""Random crop of the camera image and its calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from .each_camera import check_single_image


@TRANSFORMS.register_module()
class BEVRandomCrop(BaseTransform):
    """Crop the image to a fixed size, at a random or a given position.

    The calibration is updated. The BEV label does not change: cells that the crop no longer
    shows keep their classes, so the network learns to predict what it cannot see.

    Required keys: ``img``, ``calibration``.

    Args:
        size: Width and height of the crop in pixels, at most those of the image.
        x: Range of the horizontal position, from left (0) to right (1). Defaults to (0.0, 1.0).
        y: Range of the vertical position, from top (0) to bottom (1); (1, 1) always keeps the
            bottom. Defaults to (0.0, 1.0).
    """

    def __init__(
        self,
        size: Sequence[int],
        x: Sequence[float] = (0.0, 1.0),
        y: Sequence[float] = (0.0, 1.0),
    ) -> None:
        self.size = (int(size[0]), int(size[1]))
        if min(self.size) < 1:
            raise ValueError(f'BEVRandomCrop.size must be positive, found {tuple(size)}')
        for name, range_ in (('x', x), ('y', y)):
            if len(range_) != 2 or not 0 <= range_[0] <= range_[1] <= 1:
                raise ValueError(
                    f'BEVRandomCrop.{name} must be a range within [0, 1], found {tuple(range_)}'
                )
        self.x = (float(x[0]), float(x[1]))
        self.y = (float(y[0]), float(y[1]))

    def transform(self, results: dict) -> dict:
        check_single_image(results, type(self).__name__)
        height, width = results['img'].shape[:2]
        if self.size[0] > width or self.size[1] > height:
            raise ValueError(
                f'BEVRandomCrop.size = {self.size} (width, height) is larger than the '
                f'image of {width} x {height}; set a smaller size, or resize before'
            )
        left = self._offset(self.x, width - self.size[0])
        top = self._offset(self.y, height - self.size[1])
        results['img'] = results['img'][top : top + self.size[1], left : left + self.size[0]]
        results['img_shape'] = results['img'].shape[:2]
        results['calibration'] = results['calibration'].cropped(left, top, *self.size)
        return results

    @staticmethod
    def _offset(range_: tuple[float, float], most: int) -> int:
        return min(int(np.random.uniform(*range_) * (most + 1)), most)

    def __repr__(self) -> str:
        return f'{type(self).__name__}(size={self.size}, x={self.x}, y={self.y})'
