"""Resize and random crop in one transform, which resizes only the crop."""

from __future__ import annotations

from typing import Any

import numpy as np
from mmcv.image import rescale_size
from mmcv.transforms import BaseTransform, RandomChoiceResize, RandomResize, Resize
from mmcv.transforms.utils import avoid_cache_randomness
from mmengine.registry import TRANSFORMS

from .fast_random_crop import Box, FastRandomCrop
from .partial_resize import nearest_indices, resize_part

UNKNOWN = ('gt_bboxes', 'gt_keypoints', 'gt_depth_map')


@TRANSFORMS.register_module()
@avoid_cache_randomness
class ResizeRandomCrop(BaseTransform):
    """A combination of stock's resize and `RandomCrop` that resizes only the crop.

    The random numbers are drawn from numpy's generator in stock's order, so crops and labels are
    equal. Images are equal where the crop begins on a pixel boundary of both sizes, as with the
    ratios 2 and 1.5. Otherwise pixels are sampled at most 1/128 of a pixel off, which changes a
    byte by at most 5 at the sharpest edges, and by less than 0.1 in the mean of a photograph.

    Example::

        train_pipeline = [
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(type='ResizeRandomCrop',
                 resize=dict(type='RandomResize', scale=(2048, 1024), ratio_range=(0.5, 2.0),
                             keep_ratio=True),
                 crop=dict(crop_size=(512, 1024), cat_max_ratio=0.75)),
            ...]

    Required keys: ``img``; ``gt_seg_map`` and ``seg_fields`` where there are labels.
    Added or modified keys: those of both transforms.

    Args:
        resize: Config of `Resize`, `RandomResize` or `RandomChoiceResize`, with OpenCV's bilinear
            interpolation, which is their default.
        crop: Arguments of `RandomCrop`.
    """

    def __init__(self, resize: dict, crop: dict) -> None:
        self.resize = TRANSFORMS.build(resize)
        self.crop = FastRandomCrop(**{key: crop[key] for key in crop if key != 'type'})
        inner = getattr(self.resize, 'resize', self.resize)
        if not isinstance(inner, Resize) or not isinstance(
            self.resize, (Resize, RandomResize, RandomChoiceResize)
        ):
            raise ValueError(
                'ResizeRandomCrop.resize must be the config of Resize, RandomResize or '
                f'RandomChoiceResize, found {resize}'
            )
        if (inner.interpolation, inner.backend) != ('bilinear', 'cv2'):
            raise ValueError(
                "ResizeRandomCrop.resize must have interpolation='bilinear' and backend='cv2', "
                f'found {inner.interpolation!r} and {inner.backend!r}; use the two stock transforms'
            )
        self.keep_ratio = inner.keep_ratio

    def transform(self, results: dict) -> dict:
        unknown = [key for key in UNKNOWN if results.get(key) is not None]
        if unknown:
            raise ValueError(
                'ResizeRandomCrop supports images and segmentation maps only, found '
                f'{unknown}; use the two stock transforms'
            )
        image = results['img']
        height, width = image.shape[:2]
        new_width, new_height = self._draw_size(results, (width, height))
        labels = {
            key: _NearestParts(results[key], (new_width, new_height))
            for key in results.get('seg_fields', [])
            if results.get(key) is not None
        }
        box = self.crop.draw_varied_box(
            new_height, new_width, lambda box: labels['gt_seg_map'].take(box)
        )
        results['img'] = resize_part(image, (new_width, new_height), box)
        for key, parts in labels.items():
            results[key] = parts.take(box)
        results['img_shape'] = results['img'].shape[:2]
        results['scale_factor'] = new_width / width, new_height / height
        results['keep_ratio'] = self.keep_ratio
        return results

    def _draw_size(self, results: dict, size: tuple[int, int]) -> tuple[int, int]:
        """Return width and height that stock would resize to, and set its keys in the results."""
        resize: Any = self.resize
        if isinstance(resize, RandomResize):
            results['scale'] = resize._random_scale()
        elif isinstance(resize, RandomChoiceResize):
            results['scale'], results['scale_idx'] = resize._random_select()
        elif resize.scale:
            results['scale'] = resize.scale
        else:
            factors = zip(size, resize.scale_factor)
            results['scale'] = tuple(int(side * factor + 0.5) for side, factor in factors)
        scale = results['scale']
        return rescale_size(size, scale) if self.keep_ratio else scale

    def __repr__(self) -> str:
        return f'{type(self).__name__}(resize={self.resize}, crop={self.crop})'


class _NearestParts:
    """Labels that are resized by nearest neighbour, one part at a time."""

    def __init__(self, labels: np.ndarray, size: tuple[int, int]) -> None:
        self._labels = labels
        self._rows = nearest_indices(labels.shape[0], size[1])
        self._columns = nearest_indices(labels.shape[1], size[0])

    def take(self, box: Box) -> np.ndarray:
        """Return the part of the resized labels in a box."""
        top, bottom, left, right = box
        return self._labels[self._rows[top:bottom]].take(self._columns[left:right], axis=1)
