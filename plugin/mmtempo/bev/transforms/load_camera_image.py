"""Reads a camera image and starts its calibration."""

from __future__ import annotations

import cv2
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from ..calibration import Calibration, check_intrinsics
from ..image_files import decode, read_file

# Intrinsics are those of the pixels as they lie in the file, whatever its EXIF data say.
FLAGS = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


@TRANSFORMS.register_module()
class LoadCameraImage(BaseTransform):
    """Load the camera image, whatever its size, with its calibration.

    Required keys: ``img_path``, ``intrinsics``; ``cam2bev`` where the BEV frame is not the
    camera's own.
    Added keys: ``img`` (uint8, BGR), ``img_shape``, ``ori_shape``, ``calibration``.
    """

    def transform(self, results: dict) -> dict:
        path = results['img_path']
        if isinstance(path, list):
            raise ValueError(
                f'LoadCameraImage: the sample has {len(path)} cameras; put what is done to single '
                "images into dict(type='EachCamera', transforms=[...])"
            )
        image = decode(read_file(path, 'image'), FLAGS, path, 'image')
        height, width = image.shape[:2]
        intrinsics = check_intrinsics(results['intrinsics'], path)
        results['img'] = image
        results['img_shape'] = results['ori_shape'] = (height, width)
        results['calibration'] = Calibration.native(
            intrinsics, (width, height), results.get('cam2bev')
        )
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'
