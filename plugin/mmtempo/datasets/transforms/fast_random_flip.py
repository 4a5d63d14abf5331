"""Random flip that returns contiguous memory."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

import cv2
import mmcv
import numpy as np
from mmcv.transforms.utils import cache_randomness
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

    # A separate list, because mmcv's decorator would append to that of the stock class.
    _methods_with_randomness: list[str] = []

    @cache_randomness
    def _choose_direction(self) -> str | None:
        """Draw as stock's `np.random.choice` does, but without its overhead."""
        one = isinstance(self.direction, str)
        directions: Sequence[str] = [self.direction] if one else list(self.direction)
        if isinstance(self.prob, list):
            shares = [*self.prob, 1 - sum(self.prob)]
        else:
            shares = [self.prob / len(directions)] * len(directions) + [1.0 - self.prob]
        bounds = list(itertools.accumulate(shares))
        index = bisect.bisect([bound / bounds[-1] for bound in bounds], np.random.random_sample())
        return [*directions, None][index]

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
