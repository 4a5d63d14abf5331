"""Random flips that are made at once."""

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
    """mmseg's `RandomFlip`, with the same draws.

    Stock gives an image that is read backwards, which slows down all that comes behind it and is
    copied there. Here image and labels are flipped in one pass.

    Args:
        args: Those of mmseg's `RandomFlip`.
        kwargs: Those of mmseg's `RandomFlip`.
    """

    # A list of its own: mmcv's decorator would add to stock's.
    _methods_with_randomness: list[str] = []

    @cache_randomness
    def _choose_direction(self) -> str | None:
        """Draw as stock's `np.random.choice` does, which costs as much as many a flip."""
        one = isinstance(self.direction, str)
        directions: Sequence[str] = [self.direction] if one else list(self.direction)
        if isinstance(self.prob, list):
            shares = [*self.prob, 1 - sum(self.prob)]
        else:
            shares = [self.prob / len(directions)] * len(directions) + [1.0 - self.prob]
        bounds = list(itertools.accumulate(shares))
        place = bisect.bisect([bound / bounds[-1] for bound in bounds], np.random.random_sample())
        return [*directions, None][place]

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
                else:  # which stock swaps in place
                    results[key] = self._flip_seg_map(results[key].copy(), direction).copy()
                results['swap_seg_labels'] = self.swap_seg_labels


def _flipped(array: np.ndarray, direction: str) -> np.ndarray:
    # OpenCV knows neither all types nor a last dimension of 1.
    if array.dtype == np.uint8 and (array.ndim == 2 or array.shape[2:] in ((3,), (4,))):
        return cv2.flip(array, CODES[direction])
    return np.ascontiguousarray(mmcv.imflip(array, direction))
