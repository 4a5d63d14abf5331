"""Resize of the camera image and its calibration."""

from mmcv.transforms import Resize
from mmengine.registry import TRANSFORMS

from .each_camera import check_single_image


@TRANSFORMS.register_module()
class BEVResize(Resize):
    """Resize the image and update its calibration; takes the arguments of mmcv's `Resize`.

    Required keys: ``img``, ``calibration``. The BEV label does not change.
    """

    def transform(self, results: dict) -> dict:
        check_single_image(results, type(self).__name__)
        results = super().transform(results)
        height, width = results['img'].shape[:2]
        results['calibration'] = results['calibration'].resized(width, height)
        return results
