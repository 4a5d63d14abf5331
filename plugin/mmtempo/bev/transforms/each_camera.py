"""Runs transforms on each camera of a sample."""

from __future__ import annotations

from collections.abc import Sequence

from mmcv.transforms import BaseTransform, Compose
from mmengine.registry import TRANSFORMS

PER_CAMERA = ('img_path', 'intrinsics', 'cam2bev')


@TRANSFORMS.register_module()
class EachCamera(BaseTransform):
    """Run transforms on each camera of a sample, which draw their random numbers anew for each.

    Required keys: lists ``img_path``, ``intrinsics``, ``cam2bev``.
    Every key that the transforms return becomes a list, one entry a camera.

    Example::

        dict(type='EachCamera', transforms=[
            dict(type='LoadCameraImage'),
            dict(type='BEVResize', scale=(352, 198)),
            dict(type='BEVRandomCrop', size=(352, 128))])

    Args:
        transforms: Configs of the transforms.
    """

    def __init__(self, transforms: Sequence[dict]) -> None:
        self.transforms = Compose(transforms)

    def transform(self, results: dict) -> dict:
        cameras = [
            self.transforms(dict(zip(PER_CAMERA, values)))
            for values in zip(*(results[key] for key in PER_CAMERA))
        ]
        return results | {key: [camera[key] for camera in cameras] for key in cameras[0]}

    def __repr__(self) -> str:
        return f'{type(self).__name__}(transforms={self.transforms.transforms})'
