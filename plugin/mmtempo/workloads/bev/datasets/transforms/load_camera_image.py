"""Loading of a camera image with its calibration."""

from __future__ import annotations

import cv2
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS

from mmtempo.datasets.images.decode import check_reduce_to, decode, decode_reduced, read_file
from mmtempo.workloads.bev.structures.calibration import Calibration, check_intrinsics

# Intrinsics refer to the pixels as stored in the file, so its EXIF orientation is not applied.
FLAGS = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION


@TRANSFORMS.register_module()
class LoadCameraImage(BaseTransform):
    """Load a camera image of any size with its calibration.

    Required keys: ``img_path``, ``intrinsics``; ``cam2bev`` where the BEV frame is not the
    camera frame.
    Added keys: ``img`` (uint8, BGR), ``img_shape``, ``ori_shape``, ``calibration``.

    With `reduce_to`, a JPEG that is at least twice as large is decoded at 1/2, 1/4 or 1/8 of its
    size, which takes less time. The calibration accounts for it. The images differ from those of
    a full decode and `BEVResize`: `BEVResize` samples single pixels, a reduced decode averages
    all of them.

    Args:
        reduce_to: Width and height in pixels that the pipeline needs at least, such as the
            largest scale of `BEVResize`; None decodes in full. Defaults to None.
    """

    def __init__(self, reduce_to: tuple[int, int] | None = None) -> None:
        self.reduce_to = check_reduce_to(reduce_to, type(self).__name__)

    def transform(self, results: dict) -> dict:
        path = results['img_path']
        if isinstance(path, list):
            raise ValueError(
                f'LoadCameraImage: expected one camera image, found {len(path)}; put the '
                "transforms of single images into dict(type='EachCamera', transforms=[...])"
            )
        content, factor = read_file(path, 'image'), 1
        if self.reduce_to is None:
            image = decode(content, FLAGS, path, 'image')
        else:
            image, factor = decode_reduced(content, FLAGS, self.reduce_to, path, 'image')
        height, width = image.shape[:2]
        native = width * factor, height * factor
        intrinsics = check_intrinsics(results['intrinsics'], path)
        results['img'] = image
        results['img_shape'], results['ori_shape'] = (height, width), native[::-1]
        calibration = Calibration.native(intrinsics, native, results.get('cam2bev'))
        results['calibration'] = calibration.resized(width, height) if factor > 1 else calibration
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(reduce_to={self.reduce_to})'
