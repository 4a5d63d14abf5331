"""Random crops whose labels are counted, not sorted."""

from __future__ import annotations

import numpy as np
from mmcv.transforms.utils import cache_randomness
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import RandomCrop

from .crop_check import is_varied

Box = tuple[int, int, int, int]


@TRANSFORMS.register_module()
class FastRandomCrop(RandomCrop):
    """mmseg's `RandomCrop`: the same crops, drawn from numpy's generator in the same order.

    With `cat_max_ratio` stock sorts the labels of up to ten crops to count them; here a histogram
    counts them. Labels that are no bytes are sorted as stock does it.

    Args:
        crop_size: Height and width, or one number for both.
        cat_max_ratio: The share of the crop that one class must stay below; crops are drawn anew,
            at most ten times, until it does. Defaults to 1.0.
        ignore_index: The label that does not count. Defaults to 255.
    """

    # A list of its own: mmcv's decorator would add to stock's.
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
        """Top, bottom, left and right of the crop."""
        height, width = results['img'].shape[:2]
        box = self.draw_box(height, width)
        if self.cat_max_ratio < 1.0:
            for _ in range(10):
                labels = self.crop(results['gt_seg_map'], box)
                if is_varied(labels, self.ignore_index, self.cat_max_ratio):
                    break
                box = self.draw_box(height, width)
        return box

    def draw_box(self, height: int, width: int) -> Box:
        """A box somewhere in an image of this size; it reaches beyond a smaller one."""
        top = np.random.randint(0, max(height - self.crop_size[0], 0) + 1)
        left = np.random.randint(0, max(width - self.crop_size[1], 0) + 1)
        return top, top + self.crop_size[0], left, left + self.crop_size[1]
