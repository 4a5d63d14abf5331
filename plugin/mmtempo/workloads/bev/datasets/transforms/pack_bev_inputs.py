"""Packing of a sample into inputs and data sample of the model."""

from __future__ import annotations

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample

META_KEYS = ('token', 'img_path', 'bev_path', 'calibration', 'img_shape', 'ori_shape', 'flip')


@TRANSFORMS.register_module()
class PackBEVInputs(BaseTransform):
    """Pack image, label and meta information for the model.

    Required keys: ``img``; ``gt_bev`` is optional.
    Returned keys: ``inputs``, uint8 (3, H, W), or (cameras, 3, H, W) where ``img`` is a list;
    ``data_samples``, a `BEVDataSample` with the packed label as int16.
    """

    def transform(self, results: dict) -> dict:
        image = results['img']
        if isinstance(image, list):
            if len({each.shape for each in image}) > 1:
                raise ValueError(
                    'PackBEVInputs: the images of the cameras differ in shape: '
                    f'{[each.shape[:2] for each in image]}; '
                    'end EachCamera with BEVResize(scale=...) or BEVRandomCrop(size=...)'
                )
            image = np.stack(image)
        image = np.ascontiguousarray(np.moveaxis(image, -1, -3))
        sample = BEVDataSample(metainfo={k: results[k] for k in META_KEYS if k in results})
        if 'gt_bev' in results:
            label = np.ascontiguousarray(results['gt_bev'])
            sample.gt_bev = torch.from_numpy(label.view(np.int16))
        return dict(inputs=torch.from_numpy(image), data_samples=sample)

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'
