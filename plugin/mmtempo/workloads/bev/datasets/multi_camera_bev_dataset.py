"""Data set of BEV segmentation around a vehicle, with several camera images per sample."""

from __future__ import annotations

import os.path as osp
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mmengine.registry import DATASETS

from mmtempo.workloads.bev.structures.calibration import (
    CAMERA_NAMES,
    EGO_TO_BEV,
    check_intrinsics,
    check_pose,
)

from .nuscenes_bev_dataset import IMAGE_SUFFIXES, NuScenesBEVDataset


@DATASETS.register_module()
class MultiCameraBEVDataset(NuScenesBEVDataset):
    """Images of all cameras of a vehicle, with one packed label around it.

    Layout of the files::

        <data_root>/img_dir/<split>/<CAMERA>/<token>.{png,jpg}   images, any size
        <data_root>/ann_bev_dir/<split>/<token>.png              16-bit label, 200 x 200
        <data_root>/calib.json     {token: {CAMERA: {"intrinsics": 3x3, "cam2ego": 4x4}}}

    ``cam2ego`` maps camera coordinates to nuScenes' vehicle axes (x ahead, y left, z up). In
    the pipeline, `EachCamera` runs transforms on each image separately. Everything else is
    as in `NuScenesBEVDataset`.

    Example::

        dataset=dict(
            type='MultiCameraBEVDataset',
            data_root='data/synthetic_multicam',
            data_prefix=dict(img_path='img_dir/train', bev_path='ann_bev_dir/train'),
            pipeline=[
                dict(type='EachCamera', transforms=[dict(type='LoadCameraImage')]),
                dict(type='LoadBEVAnnotation'),
                dict(type='PackBEVInputs')])

    Args:
        cameras: Folders of the cameras, in the order of the model's input.
            Defaults to nuScenes' 6 cameras.
        label_size: Rows and columns of a label. Defaults to (200, 200).
        **kwargs: As for `NuScenesBEVDataset`.
    """

    HOW_TO_GENERATE = f'{NuScenesBEVDataset.HOW_TO_GENERATE} --multicam'

    def __init__(
        self,
        cameras: Sequence[str] = CAMERA_NAMES,
        label_size: Sequence[int] = (200, 200),
        **kwargs: Any,
    ) -> None:
        if isinstance(cameras, str) or not cameras:
            raise ValueError(
                'MultiCameraBEVDataset.cameras must be a list of camera folders, such as '
                f"['CAM_FRONT', 'CAM_BACK'], found {cameras!r}"
            )
        self.cameras = tuple(cameras)
        super().__init__(label_size=label_size, **kwargs)

    def _sample_name(self, info: dict) -> str:
        return info['token']

    def _find_images(self, folder: str) -> dict[str, Any]:
        by_camera = []
        for camera in self.cameras:
            path = osp.join(folder, camera)
            if not osp.isdir(path):
                raise FileNotFoundError(
                    f'{osp.abspath(path)} does not exist; data_prefix.img_path must contain a '
                    f'folder for each of cameras={list(self.cameras)}; generate data with: '
                    f'{self.HOW_TO_GENERATE} NEW_FOLDER'
                )
            by_camera.append(self._by_token(path, IMAGE_SUFFIXES))
        tokens = set().union(*by_camera)
        return {token: [images.get(token) for images in by_camera] for token in tokens}

    def _check_images(self, images: dict[str, Any], report: Callable) -> None:
        for number, camera in enumerate(self.cameras):
            missing = [token for token, paths in images.items() if paths[number] is None]
            report(missing, f'samples without an image of {camera}')

    def _cameras_of(self, calibration: Any) -> dict[str, Any]:
        poses = [np.asarray(calibration[camera]['cam2ego']) for camera in self.cameras]
        return dict(
            intrinsics=[calibration[camera]['intrinsics'] for camera in self.cameras],
            cam2bev=[EGO_TO_BEV @ pose for pose in poses],
        )

    def _check_calibration(self, calibration: Any, token: str) -> None:
        for camera in self.cameras:
            where = f'{token}, {camera}'
            entry = calibration.get(camera) if isinstance(calibration, dict) else None
            if not isinstance(entry, dict) or not {'intrinsics', 'cam2ego'} <= set(entry):
                raise ValueError(
                    f"{where}: expected {{'intrinsics': 3x3, 'cam2ego': 4x4}}, found {entry!r:.80}"
                )
            check_intrinsics(entry['intrinsics'], where)
            check_pose(entry['cam2ego'], where)
