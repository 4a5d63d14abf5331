"""A dataset of mmengine with transforms that are known to be deterministic, to be cached."""

from __future__ import annotations

from mmcv.transforms import BaseTransform
from mmengine.registry import DATASETS, TRANSFORMS

from tests.testing.cached_numbers import Decode, Numbers

DATASETS.register_module('GradedNumbers', module=Numbers)
TRANSFORMS.register_module('GradedDecode', module=Decode)


@TRANSFORMS.register_module()
class GradedPack(BaseTransform):
    """Keeps the mean of the image only."""

    def transform(self, results: dict) -> dict:
        import torch

        return dict(inputs=torch.full((8,), float(results['img'].mean()) / 255))
