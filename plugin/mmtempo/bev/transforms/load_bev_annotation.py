"""Reads a packed BEV label."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from ..errors import BadSampleError
from .load_camera_image import decode, read_file


@TRANSFORMS.register_module()
class LoadBEVAnnotation(BaseTransform):
    """Load the 16-bit label and keep it packed.

    Required keys: ``bev_path``. Added keys: ``gt_bev`` (uint16, rows x columns).

    Args:
        label_size: Rows and columns that the label must have. Defaults to (196, 200).
    """

    def __init__(self, label_size: Sequence[int] = (196, 200)) -> None:
        self.label_size = tuple(label_size)

    def transform(self, results: dict) -> dict:
        path = results['bev_path']
        label = decode(read_file(path, 'label'), cv2.IMREAD_UNCHANGED, path, 'label')
        if label.dtype != np.uint16 or label.shape != self.label_size:
            raise BadSampleError(
                f'label {path}: expected 16-bit grey of shape {self.label_size}, '
                f'found {label.dtype} of shape {label.shape}'
            )
        if label.max() >> 15:
            raise BadSampleError(
                f'label {path}: bit 15 is set; bits 0-13 are classes and bit 14 means ignore'
            )
        results['gt_bev'] = label
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(label_size={self.label_size})'
