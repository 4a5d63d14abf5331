"""Transforms that run on each camera of a sample."""

from __future__ import annotations

from collections.abc import Sequence

from mmcv.transforms import BaseTransform, Compose
from mmengine.registry import TRANSFORMS

PER_CAMERA = ('img_path', 'intrinsics', 'cam2bev')


def check_single_image(results: dict, transform: str) -> None:
    """Raise ValueError where a transform of a single image gets those of several cameras.

    Args:
        results: The sample.
        transform: Name of the transform, for the message.
    """
    if isinstance(results['img'], list):
        raise ValueError(
            f'{transform}: expected one camera image, found {len(results["img"])}; put '
            f"{transform} into dict(type='EachCamera', transforms=[...])"
        )


@TRANSFORMS.register_module()
class EachCamera(BaseTransform):
    """Run transforms on each camera of a sample; each camera draws new random numbers.

    Required keys: lists ``img_path``, ``intrinsics``, ``cam2bev``.
    Every key that the transforms return becomes a list with one entry per camera. Transforms that
    change the scene and not only an image, such as `BEVRandomFlip`, must come after it.

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
                    f'EachCamera: expected a list with one {key} per camera, found '
                    f'{type(results.get(key)).__name__}; use the data set MultiCameraBEVDataset, '
                    'or the transforms without EachCamera'
                )
        cameras = [
            self.transforms(dict(zip(PER_CAMERA, values)))
            for values in zip(*(results[key] for key in PER_CAMERA))
        ]
        if any(camera is None for camera in cameras):  # mmengine then takes another sample
            return None
        if any(getattr(camera.get('calibration'), 'mirrored', False) for camera in cameras):
            raise ValueError(
                'EachCamera: a flip of single cameras does not flip the label; put BEVRandomFlip '
                'after EachCamera, so that it flips all cameras and the label'
            )
        return results | {key: [camera[key] for camera in cameras] for key in cameras[0]}

    def __repr__(self) -> str:
        return f'{type(self).__name__}(transforms={self.transforms.transforms})'
