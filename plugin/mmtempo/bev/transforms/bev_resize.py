"""Resizes the image and its calibration."""

from mmcv.transforms import Resize
from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module()
class BEVResize(Resize):
    """mmcv's `Resize`, with the calibration kept in step; takes the same arguments.

    Required keys: ``img``, ``calibration``. The BEV label does not change.
    """

    def transform(self, results: dict) -> dict:
        results = super().transform(results)
        height, width = results['img'].shape[:2]
        results['calibration'] = results['calibration'].resized(width, height)
        return results
