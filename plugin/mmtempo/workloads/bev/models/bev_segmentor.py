"""Segmentor that predicts a BEV segmentation from camera images."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.model import BaseModel
from mmengine.registry import MODELS

from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample

LEGACY_SIZE = (800, 600)


@MODELS.register_module()
class BEVSegmentor(BaseModel):
    """Model of backbone, view transform and head.

    Data flow::

        images -> backbone -> (neck) -> view_transform -> decode_head -> logits
                                             ^
        calibrations -> data_preprocessor -> geometry

    A sample has one camera image, or one image of each of its cameras.

    Args:
        backbone: Config of an image backbone; its last output is used.
        view_transform: Config of the view transform.
        decode_head: Config of the head.
        neck: Config of a neck between backbone and view transform. Defaults to None.
        data_preprocessor: Config of the data preprocessor.
            Defaults to None: `BEVDataPreprocessor`.
        legacy: Whether to reproduce the geometry, the calibration and the loss
            of the older code. A flag in the config of a part takes precedence.
            Defaults to False.
        init_cfg: As for mmengine's `BaseModule`. Defaults to None.
    """

    def __init__(
        self,
        backbone: dict,
        view_transform: dict,
        decode_head: dict,
        neck: dict | None = None,
        data_preprocessor: dict | None = None,
        legacy: bool = False,
        init_cfg: Any = None,
    ) -> None:
        data_preprocessor = dict(type='BEVDataPreprocessor') | dict(data_preprocessor or {})
        if legacy:
            view_transform = dict(legacy=True) | dict(view_transform)
            loss = dict(type='OccupancyLoss', legacy=True) | dict(decode_head.get('loss') or {})
            decode_head = dict(decode_head) | dict(loss=loss)
            data_preprocessor = dict(legacy_size=LEGACY_SIZE) | data_preprocessor
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.backbone = MODELS.build(backbone)
        self.neck = MODELS.build(neck) if neck is not None else None
        self.view_transform = MODELS.build(view_transform)
        self.decode_head = MODELS.build(decode_head)
        self.data_preprocessor.prepare_geometry = self.view_transform.prepare

    def extract_bev(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the BEV features of a preprocessed batch."""
        images = inputs['imgs']
        # The backbone runs on single images; the view transform combines the cameras.
        features = self.backbone(images.flatten(0, -4))
        if self.neck is not None:
            features = self.neck(features)
        if isinstance(features, (list, tuple)):
            features = features[-1]
        return self.view_transform(features, inputs['geometry'])

    def forward(
        self,
        inputs: dict[str, torch.Tensor],
        data_samples: list[BEVDataSample] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Run the model on the inputs of `BEVDataPreprocessor`.

        Args:
            inputs: Images, geometry and labels of the batch.
            data_samples: The samples of the batch; needed in mode 'predict'. Defaults to None.
            mode: 'loss', 'predict' or 'tensor', as for mmengine's `BaseModel.forward`.
                Defaults to 'tensor'.
        """
        if mode == 'loss':
            return self.loss(inputs)
        if mode == 'predict':
            return self.predict(inputs, data_samples or [])
        if mode == 'tensor':
            return self.decode_head(self.extract_bev(inputs))
        raise ValueError(f"mode must be 'loss', 'predict' or 'tensor', found {mode!r}")

    def loss(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the losses of a batch."""
        if 'occupancy' not in inputs:
            raise ValueError(
                'BEVSegmentor: the batch has no labels; put LoadBEVAnnotation before PackBEVInputs '
                'in the training pipeline'
            )
        bev = self.extract_bev(inputs)
        return self.decode_head.loss(bev, inputs['occupancy'], inputs['valid'])

    def predict(
        self, inputs: dict[str, torch.Tensor], data_samples: list[BEVDataSample]
    ) -> list[BEVDataSample]:
        """Return the samples with logits and unpacked labels, which stay on the device."""
        logits = self.decode_head(self.extract_bev(inputs))
        for i, sample in enumerate(data_samples):
            sample.pred_logits = logits[i]
            if 'occupancy' in inputs:
                sample.gt_occupancy = inputs['occupancy'][i]
                sample.gt_valid = inputs['valid'][i]
        return data_samples
