"""Data preprocessor that copies a batch to the device and prepares it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from mmengine.model import BaseDataPreprocessor
from mmengine.registry import MODELS

from mmtempo.device.prepared_batch import take_prepared
from mmtempo.device.streams import to_device
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration, pixel_to_bev
from mmtempo.workloads.bev.structures.labels import unpack_label


@MODELS.register_module()
class BEVDataPreprocessor(BaseDataPreprocessor):
    """Preprocessor that normalizes images and unpacks labels on the device, a batch at a time.

    There are no synchronizations. A batch needs three copies to the device: the uint8 images, the
    packed labels, and those calibrations that the view transform has not cached yet. The model
    gets::

        inputs = dict(
            imgs=...,        # float (B, 3, H, W) or (B, cameras, 3, H, W), normalized
            geometry=...,    # result of the view transform's `prepare` for the calibrations
            occupancy=...,   # bool (B, classes, rows, columns), where there are labels
            valid=...)       # bool (B, rows, columns)

    Args:
        mean: Mean of each channel, in the order after `bgr_to_rgb`.
            Defaults to (123.675, 116.28, 103.53).
        std: Standard deviation of each channel, in the same order.
            Defaults to (58.395, 57.12, 57.375).
        bgr_to_rgb: Whether to reverse the channels. Defaults to True.
        num_classes: Number of classes in the labels. Defaults to 14.
        legacy_size: Width and height to which every calibration is scaled, as in the older
            code; None uses the calibration of the sample. Defaults to None.
        non_blocking: Whether copies may overlap with computation on the device; memory that
            the loader did not pin is pinned for that. Defaults to True.
    """

    takes_stacked_inputs = True

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
        # Set by the model, called in `forward`: calibrations are read on the host, outside of
        # compiled code.
        self.prepare_geometry: Callable[[np.ndarray, tuple[int, int]], Any] | None = None
        self.bgr_to_rgb = bgr_to_rgb
        self.num_classes = num_classes
        self.legacy_size = None if legacy_size is None else (legacy_size[0], legacy_size[1])
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, data: dict, training: bool = False) -> dict:
        result = take_prepared(data, training) or self.prepare_ahead(data, training)
        if self.prepare_geometry is not None:
            inputs = result['inputs']
            height, width = inputs['imgs'].shape[-2:]
            pix2bev = self._pix2bev(result['data_samples'])
            inputs['geometry'] = self.prepare_geometry(pix2bev, (height, width))
        return result

    def prepare_ahead(self, data: dict, training: bool) -> dict:
        """Prepare all but the geometry, whose cache belongs to the stream of the step."""
        samples: list[BEVDataSample] = data['data_samples']
        images = self._normalize(data['inputs'])
        inputs = dict(imgs=images)
        if samples and 'gt_bev' in samples[0]:
            packed = self._to_device(_labels(samples))
            inputs['occupancy'], inputs['valid'] = unpack_label(packed, self.num_classes)
        return dict(inputs=inputs, data_samples=samples)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        return to_device(tensor, self.device) if self._non_blocking else tensor.to(self.device)

    def _normalize(self, images: Any) -> torch.Tensor:
        if not isinstance(images, torch.Tensor):
            shapes = {tuple(image.shape) for image in images}
            if len(shapes) > 1:
                raise ValueError(
                    f'BEVDataPreprocessor: the images of a batch differ in shape: {sorted(shapes)}'
                    '; end the pipeline with BEVResize(scale=...) or BEVRandomCrop(size=...)'
                )
            images = torch.stack(list(images))
        batch = self._to_device(images).to(self.mean.dtype)
        if self.bgr_to_rgb:
            batch = batch.flip(-3)
        return torch.sub(batch, self.mean).div_(self.std)

    def _pix2bev(self, samples: Sequence[BEVDataSample]) -> np.ndarray:
        """Return the matrices of `pixel_to_bev`, (B, cameras, 4, 4)."""
        rigs = [sample.calibration for sample in samples]
        rigs = [[rig] if isinstance(rig, Calibration) else rig for rig in rigs]
        cam2bev = np.stack([[camera.cam2bev for camera in rig] for rig in rigs])
        return pixel_to_bev(np.stack([self._intrinsics(rig) for rig in rigs]), cam2bev)

    def _intrinsics(self, rig: Sequence[Calibration]) -> np.ndarray:
        if self.legacy_size is None:
            return np.stack([camera.intrinsics for camera in rig])
        if len(rig) > 1:
            raise ValueError(
                'data_preprocessor.legacy_size: expected one camera, as in the older code, found '
                f'{len(rig)}; set model.legacy=False, or data_preprocessor.legacy_size=None'
            )
        return np.stack([camera.legacy_intrinsics(self.legacy_size) for camera in rig])


def _labels(samples: Sequence[BEVDataSample]) -> torch.Tensor:
    """Return the packed labels, (B, rows, columns)."""
    # `stack_collate` has stacked them; `stacked` omits a field that a sample has replaced since.
    stacked: torch.Tensor | None = getattr(samples, 'stacked', {}).get('gt_bev')
    return torch.stack([sample.gt_bev for sample in samples]) if stacked is None else stacked
