"""Brings a batch to the device and prepares it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import MODELS

from .bev_data_sample import BEVDataSample
from .labels import unpack_label


@MODELS.register_module()
class BEVDataPreprocessor(BaseDataPreprocessor):
    """Batched normalise and label unpacking on the device; nothing here waits for it.

    A batch crosses in three copies: the uint8 images, the packed labels, and the inverse
    calibrations, which are taken on the host. The model gets::

        inputs = dict(
            imgs=...,        # float (B, 3, H, W), normalised
            img2cam=...,     # float (B, 3, 3), inverse intrinsics of the image as it is now
            occupancy=...,   # bool (B, classes, rows, columns), where there are labels
            valid=...)       # bool (B, rows, columns)

    Args:
        mean: Of the channels, in the order after `bgr_to_rgb`.
            Defaults to (123.675, 116.28, 103.53).
        std: Likewise. Defaults to (58.395, 57.12, 57.375).
        bgr_to_rgb: Whether to reverse the channels. Defaults to True.
        num_classes: Bits of the label that are classes. Defaults to 14.
        legacy_size: Width and height for which the older code scaled every
            calibration; None follows the calibration of the sample. Defaults to None.
        non_blocking: Whether copies may overlap with the device's work; they do where the
            loader delivers stacked, pinned tensors. Defaults to True.
    """

    def __init__(
        self,
        mean: Sequence[float] = (123.675, 116.28, 103.53),
        std: Sequence[float] = (58.395, 57.12, 57.375),
        bgr_to_rgb: bool = True,
        num_classes: int = 14,
        legacy_size: Sequence[int] | None = None,
        non_blocking: bool = True,
    ) -> None:
        super().__init__(non_blocking=non_blocking)
        self.bgr_to_rgb = bgr_to_rgb
        self.num_classes = num_classes
        self.legacy_size = None if legacy_size is None else (legacy_size[0], legacy_size[1])
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, data: dict, training: bool = False) -> dict:
        samples: list[BEVDataSample] = data['data_samples']
        inputs = dict(imgs=self._normalise(data['inputs']), img2cam=self._img2cam(samples))
        if samples and 'gt_bev' in samples[0]:
            packed = self._to_device(torch.stack([sample.gt_bev for sample in samples]))
            inputs['occupancy'], inputs['valid'] = unpack_label(packed, self.num_classes)
        return dict(inputs=inputs, data_samples=samples)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=self._non_blocking)

    def _normalise(self, images: Any) -> torch.Tensor:
        if not isinstance(images, torch.Tensor):
            shapes = {tuple(image.shape) for image in images}
            if len(shapes) > 1:
                raise ValueError(
                    f'the images of a batch differ in shape: {sorted(shapes)}; '
                    'end the pipeline with BEVResize(scale=...) or BEVRandomCrop(size=...)'
                )
            images = torch.stack(list(images))
        batch = self._to_device(images).to(self.mean.dtype)
        if self.bgr_to_rgb:
            batch = batch.flip(1)
        return torch.sub(batch, self.mean).div_(self.std)

    def _img2cam(self, samples: Sequence[BEVDataSample]) -> torch.Tensor:
        calibrations = [sample.calibration for sample in samples]
        if self.legacy_size is None:
            cam2img = np.stack([c.intrinsics for c in calibrations])
        else:
            cam2img = np.stack([c.legacy_intrinsics(self.legacy_size) for c in calibrations])
        return self._to_device(torch.from_numpy(np.linalg.inv(cam2img).astype(np.float32)))
