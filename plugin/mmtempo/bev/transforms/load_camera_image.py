"""Reads a camera image and starts its calibration."""

from __future__ import annotations

import cv2
import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from ..calibration import Calibration, check_intrinsics
from ..errors import BadSampleError

# How a complete file ends. OpenCV only warns about a file that was cut short.
_ENDINGS = {b'\xff\xd8': b'\xff\xd9', b'\x89P': b'IEND\xaeB`\x82'}


def read_file(path: str, kind: str) -> bytes:
    """The file's bytes, checked to be whole; BadSampleError names what is wrong."""
    try:
        with open(path, 'rb') as file:
            content = file.read()
    except OSError as error:
        raise BadSampleError(f'{kind} {path}: {error.strerror or error}') from None
    ending = _ENDINGS.get(content[:2])
    # Some writers pad the end of the file, so look in its tail.
    if ending is not None and ending not in content[-1024:]:
        raise BadSampleError(f'{kind} {path}: truncated after {len(content)} bytes')
    return content


def decode(content: bytes, flags: int, path: str, kind: str) -> np.ndarray:
    """Decode an image; BadSampleError names the file if that fails."""
    image = None
    if content:
        try:
            image = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
        except cv2.error:
            image = None
    if image is None:
        raise BadSampleError(f'{kind} {path}: not a readable image ({len(content)} bytes)')
    return image


@TRANSFORMS.register_module()
class LoadCameraImage(BaseTransform):
    """Load the camera image, whatever its size, with its calibration.

    Required keys: ``img_path``, ``intrinsics``.
    Added keys: ``img`` (uint8, BGR), ``img_shape``, ``ori_shape``, ``calibration``.
    """

    def transform(self, results: dict) -> dict:
        path = results['img_path']
        image = decode(read_file(path, 'image'), cv2.IMREAD_COLOR, path, 'image')
        height, width = image.shape[:2]
        intrinsics = check_intrinsics(results['intrinsics'], path)
        results['img'] = image
        results['img_shape'] = results['ori_shape'] = (height, width)
        results['calibration'] = Calibration.native(intrinsics, (width, height))
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}()'
