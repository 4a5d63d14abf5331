"""Runs transforms on each camera of a sample."""

from __future__ import annotations

from collections.abc import Sequence

from mmcv.transforms import BaseTransform, Compose
from mmengine.registry import TRANSFORMS

PER_CAMERA = ('img_path', 'intrinsics', 'cam2bev')


def check_single_image(results: dict, transform: str) -> None:
    """Raise ValueError where a transform of one image was given those of several cameras."""
    if isinstance(results['img'], list):
        raise ValueError(
            f'{transform}: the sample has {len(results["img"])} cameras; put it into '
            "dict(type='EachCamera', transforms=[...])"
        )


@TRANSFORMS.register_module()
class EachCamera(BaseTransform):
    """Run transforms on each camera of a sample, which draw their random numbers anew for each.

    Required keys: lists ``img_path``, ``intrinsics``, ``cam2bev``.
    Every key that the transforms return becomes a list, one entry a camera. What changes
    the scene and not just an image, as `BEVRandomFlip` does, belongs behind it.

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

    def transform(self, results: dict) -> dict | None:
        for key in PER_CAMERA:
            if not isinstance(results.get(key), list):
                raise ValueError(
                    f'EachCamera: {key} is not a list, so the sample has one camera only; use its '
                    'transforms without EachCamera, or the data set MultiCameraBEVDataset'
                )
        cameras = [
            self.transforms(dict(zip(PER_CAMERA, values)))
            for values in zip(*(results[key] for key in PER_CAMERA))
        ]
        if any(camera is None for camera in cameras):  # mmengine then draws another sample
            return None
        if any(getattr(camera.get('calibration'), 'mirrored', False) for camera in cameras):
            raise ValueError(
                'EachCamera: a flip of single cameras leaves the label as it is; put '
                'BEVRandomFlip behind EachCamera, where it mirrors the whole rig with its label'
            )
        return results | {key: [camera[key] for camera in cameras] for key in cameras[0]}

    def __repr__(self) -> str:
        return f'{type(self).__name__}(transforms={self.transforms.transforms})'
