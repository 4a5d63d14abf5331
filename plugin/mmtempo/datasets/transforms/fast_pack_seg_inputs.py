"""Packs a sample, labels as bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import torch
from mmengine.registry import TRANSFORMS
from mmengine.structures import PixelData
from mmseg.datasets.transforms import PackSegInputs

LABELS = dict(gt_seg_map='gt_sem_seg', gt_edge_map='gt_edge_map')
# Types of values that cannot be changed.
CONSTANT = frozenset([bool, int, float, str])
META_KEYS = (
    'img_path',
    'seg_map_path',
    'ori_shape',
    'img_shape',
    'pad_shape',
    'scale_factor',
    'flip',
    'flip_direction',
    'reduce_zero_label',
)


@TRANSFORMS.register_module()
class FastPackSegInputs(PackSegInputs):
    """mmseg's `PackSegInputs`, with labels left in the bytes they are in.

    Stock makes them int64, eight times as much to bring from worker to main and to the device.
    `SparseSegDataPreProcessor` does that on the device, so the model gets what it gets from
    stock; stock's own preprocessor does not, and its losses take int64 only.

    Colour images and labels of bytes are copied; what is of another type is packed by stock, and
    may be memory that the sample had before.

    `copy=False` leaves the copy to `stack_collate`, which makes one anyway: images then are views
    of the pixels that the transform before has made, the colours of each side by side. It is for
    pipelines that make arrays of their own for each sample; read-only ones, as `CachedDataset`
    gives them, are copied all the same.

    Example::

        train_pipeline = [..., dict(type='FastPackSegInputs', copy=False)]
        train_dataloader = dict(collate_fn=dict(type='stack_collate'), ...)
        model = dict(data_preprocessor=dict(type='SparseSegDataPreProcessor', ...))

    Args:
        meta_keys: What goes into the sample's meta information, where it is there.
            Defaults to ('img_path', 'seg_map_path', 'ori_shape', 'img_shape', 'pad_shape',
            'scale_factor', 'flip', 'flip_direction', 'reduce_zero_label').
        copy: Whether images and labels are copied if they need not be. Defaults to True.
    """

    def __init__(self, meta_keys: Sequence[str] = META_KEYS, copy: bool = True) -> None:
        super().__init__(meta_keys)
        self.copy = copy

    def transform(self, results: dict) -> dict:
        image = results.get('img')
        planes = None if image is None or not _is_colour(image) else self._planes(image)
        labels = {key: results[key] for key in LABELS if _is_packed(results.get(key))}
        meta = {key: results[key] for key in self.meta_keys if _is_constant(results.get(key))}
        ours = {*labels, *meta} if planes is None else {*labels, *meta, 'img'}
        packed = super().transform({key: results[key] for key in results if key not in ours})
        if planes is not None:
            packed = dict(inputs=planes, **packed)
        # As set_metainfo(), which makes deep copies first: in vain, of what nobody can change.
        vars(packed['data_samples']).update(meta)
        packed['data_samples']._metainfo_fields.update(meta)
        for key, values in labels.items():
            owned = values[None] if self._may_keep(values) else values[None].copy()
            packed['data_samples'].set_data({LABELS[key]: PixelData(data=torch.from_numpy(owned))})
        return packed

    def _planes(self, image: np.ndarray) -> torch.Tensor:
        """(H, W, C) as (C, H, W)."""
        if self._may_keep(image):
            return torch.from_numpy(image.transpose(2, 0, 1))
        planes = np.empty(image.shape[2:] + image.shape[:2], np.uint8)
        cv2.split(image, list(planes))
        return torch.from_numpy(planes)

    def _may_keep(self, array: np.ndarray) -> bool:
        # Of a view the rest would go along.
        return not self.copy and array.flags.writeable and array.flags.c_contiguous


def _is_constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(one) in CONSTANT for one in value)
    return type(value) in CONSTANT


def _is_colour(image: np.ndarray) -> bool:
    return image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3


def _is_packed(values: np.ndarray | None) -> bool:
    return values is not None and values.dtype == np.uint8 and values.ndim == 2
