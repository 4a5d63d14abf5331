"""Random left-right flip of image, calibration and label."""

from __future__ import annotations

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS


@TRANSFORMS.register_module()
class BEVRandomFlip(BaseTransform):
    """Flip image, calibration and label left to right, so that they still agree.

    With several cameras, put it after `EachCamera`, so that it flips the whole rig.

    Required keys: ``img``, ``calibration``; ``gt_bev`` where there is one.
    Added keys: ``flip``.

    Args:
        prob: Probability of the flip. Defaults to 0.5.
    """

    def __init__(self, prob: float = 0.5) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f'BEVRandomFlip.prob must be in [0, 1], found {prob}')
        self.prob = prob

    def transform(self, results: dict) -> dict:
        results['flip'] = bool(np.random.rand() < self.prob)
        if results['flip']:
            if isinstance(results['img'], list):
                results['img'] = [image[:, ::-1] for image in results['img']]
                results['calibration'] = [camera.flipped() for camera in results['calibration']]
            else:
                results['img'] = results['img'][:, ::-1]
                results['calibration'] = results['calibration'].flipped()
            if 'gt_bev' in results:
                results['gt_bev'] = results['gt_bev'][:, ::-1]
        return results

    def __repr__(self) -> str:
        return f'{type(self).__name__}(prob={self.prob})'
