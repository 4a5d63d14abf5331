"""Packing of samples with labels as bytes."""

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
# Types of immutable values.
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
    """A `PackSegInputs` of mmseg that keeps 8-bit labels as bytes.

    Stock converts labels to int64, eight times the bytes to transfer from the worker to the main
    process and to the device. `SparseSegDataPreProcessor` converts them on the device, so the model
    gets the same input as with stock; stock's preprocessor does not, and its losses need int64.

    8-bit colour images and labels are copied; other types are packed by stock, and may share memory
    with the input.

    `copy=False` omits the copy, as `stack_collate` makes one anyway: images are then views of the
    pixels of the previous transform, in (H, W, C) memory order. It is for pipelines that allocate
    arrays for each sample; read-only arrays, as from `CachedDataset`, are copied in any case.

    Example::

        train_pipeline = [..., dict(type='FastPackSegInputs', copy=False)]
        train_dataloader = dict(collate_fn=dict(type='stack_collate'), ...)
        model = dict(data_preprocessor=dict(type='SparseSegDataPreProcessor', ...))

    Args:
        meta_keys: Keys to copy to the meta information of the sample, where they exist.
            Defaults to ('img_path', 'seg_map_path', 'ori_shape', 'img_shape', 'pad_shape',
            'scale_factor', 'flip', 'flip_direction', 'reduce_zero_label').
        copy: Whether to copy images and labels also where that is not necessary.
            Defaults to True.
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
        # Equals set_metainfo() without its deep copies, as these values are immutable.
        vars(packed['data_samples']).update(meta)
        packed['data_samples']._metainfo_fields.update(meta)
        for key, values in labels.items():
            owned = values[None] if self._may_keep(values) else values[None].copy()
            packed['data_samples'].set_data({LABELS[key]: PixelData(data=torch.from_numpy(owned))})
        return packed

    def _planes(self, image: np.ndarray) -> torch.Tensor:
        """Return an image (H, W, C) as a tensor (C, H, W)."""
        if self._may_keep(image):
            return torch.from_numpy(image.transpose(2, 0, 1))
        planes = np.empty(image.shape[2:] + image.shape[:2], np.uint8)
        cv2.split(image, list(planes))
        return torch.from_numpy(planes)

    def _may_keep(self, array: np.ndarray) -> bool:
        # Not a view: the tensor would keep, and send, the whole array.
        return not self.copy and array.flags.writeable and array.flags.c_contiguous


def _is_constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(one) in CONSTANT for one in value)
    return type(value) in CONSTANT


def _is_colour(image: np.ndarray) -> bool:
    return image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] == 3


def _is_packed(values: np.ndarray | None) -> bool:
    return values is not None and values.dtype == np.uint8 and values.ndim == 2
