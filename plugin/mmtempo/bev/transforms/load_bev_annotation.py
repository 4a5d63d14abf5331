"""Reads a packed BEV label."""

from __future__ import annotations

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from ..errors import BadSampleError
from ..image_files import decode, read_file


@TRANSFORMS.register_module()
class LoadBEVAnnotation(BaseTransform):
    """Load the 16-bit label and keep it packed.

    Required keys: ``bev_path``. Added keys: ``gt_bev`` (uint16, rows x columns).
    """

    def transform(self, results: dict) -> dict:
        path = results['bev_path']
        label = decode(read_file(path, 'label'), cv2.IMREAD_UNCHANGED, path, 'label')
        if label.dtype != np.uint16 or label.ndim != 2:
            raise BadSampleError(
                f'label {path}: expected 16-bit grey, found {label.dtype} of shape {label.shape}'
            )
        if label.max() >> 15:
            raise BadSampleError(
                f'label {path}: bit 15 is set; bits 0-13 are classes and bit 14 means ignore'
            )
        results['gt_bev'] = label
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'
