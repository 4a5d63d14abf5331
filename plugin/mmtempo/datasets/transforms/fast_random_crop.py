"""Random crop that counts labels without sorting them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mmcv.transforms.utils import cache_randomness
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import RandomCrop

from .crop_check import is_varied

Box = tuple[int, int, int, int]


@TRANSFORMS.register_module()
class FastRandomCrop(RandomCrop):
    """A faster `RandomCrop` of mmseg, with equal crops from the same random numbers.

    With `cat_max_ratio` stock sorts the labels of up to ten crops to count them; here a histogram
    counts them. Labels of other types than uint8 are sorted as in stock.

    Example::

        train_pipeline = [
            ..., dict(type='FastRandomCrop', crop_size=(512, 1024), cat_max_ratio=0.75), ...]

    Args:
        crop_size: Height and width, or one number for both.
        cat_max_ratio: The share of the crop that each class must stay below; until then, another
            crop is drawn, at most ten times. Defaults to 1.0.
        ignore_index: The label that is not counted. Defaults to 255.
    """

    # A separate list, because mmcv's decorator would append to that of the stock class.
    _methods_with_randomness: list[str] = []

    def __init__(
        self,
        crop_size: int | tuple[int, int],
        cat_max_ratio: float = 1.0,
        ignore_index: int = 255,
    ) -> None:
        super().__init__(crop_size, cat_max_ratio, ignore_index)

    @cache_randomness
    def crop_bbox(self, results: dict) -> Box:
        """Return top, bottom, left and right of the crop."""
        height, width = results['img'].shape[:2]
        return self.draw_varied_box(
            height, width, lambda box: self.crop(results['gt_seg_map'], box)
        )

    def draw_varied_box(
        self, height: int, width: int, labels_in: Callable[[Box], np.ndarray]
    ) -> Box:
        """Draw boxes in an image of this size until no class dominates the labels in one."""
        box = self.draw_box(height, width)
        if self.cat_max_ratio < 1.0:
            for _ in range(10):
                if is_varied(labels_in(box), self.ignore_index, self.cat_max_ratio):
                    break
                box = self.draw_box(height, width)
        return box

    def draw_box(self, height: int, width: int) -> Box:
        """Draw a box in an image of this size; it extends beyond an image smaller than the box."""
        top = np.random.randint(0, max(height - self.crop_size[0], 0) + 1)
        left = np.random.randint(0, max(width - self.crop_size[1], 0) + 1)
        return top, top + self.crop_size[0], left, left + self.crop_size[1]
