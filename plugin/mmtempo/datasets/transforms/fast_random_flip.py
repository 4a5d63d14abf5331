"""Random flip that returns contiguous memory."""

from __future__ import annotations

import cv2
import mmcv
import numpy as np
from mmengine.registry import TRANSFORMS
from mmseg.datasets.transforms import RandomFlip

CODES = dict(horizontal=1, vertical=0, diagonal=-1)


@TRANSFORMS.register_module()
class FastRandomFlip(RandomFlip):
    """A faster `RandomFlip` of mmseg, with equal results from the same random numbers.

    Stock returns views with negative strides, which slow down all later transforms until one of
    them copies. Here image and labels are flipped into contiguous memory in one pass.

    Example::

        train_pipeline = [..., dict(type='FastRandomFlip', prob=0.5), ...]

    Args:
        args: Positional arguments of mmseg's `RandomFlip`.
        kwargs: Keyword arguments of mmseg's `RandomFlip`.
    """

    def _flip(self, results: dict) -> None:
        direction = results['flip_direction']
        results['img'] = _flipped(results['img'], direction)
        if results.get('gt_bboxes') is not None:
            shape = results['img'].shape[:2]
            results['gt_bboxes'] = self._flip_bbox(results['gt_bboxes'], shape, direction)
        for key in results.get('seg_fields', []):
            if results.get(key) is not None:
                if self.swap_seg_labels is None:
                    results[key] = _flipped(results[key], direction)
                else:  # stock swaps labels in place
                    results[key] = self._flip_seg_map(results[key].copy(), direction).copy()
                results['swap_seg_labels'] = self.swap_seg_labels


def _flipped(array: np.ndarray, direction: str) -> np.ndarray:
    # OpenCV supports neither all types nor a last dimension of size 1.
    if array.dtype == np.uint8 and (array.ndim == 2 or array.shape[2:] in ((3,), (4,))):
        return cv2.flip(array, CODES[direction])
    return np.ascontiguousarray(mmcv.imflip(array, direction))
