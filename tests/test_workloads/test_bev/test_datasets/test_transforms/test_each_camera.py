"""Transforms run on each camera of a sample separately."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.workloads.bev.datasets.transforms.each_camera import EachCamera
from tests.testing.bev_samples import bev_results


def test_each_camera_draws_new_random_numbers() -> None:
    crop = EachCamera([dict(type='BEVRandomCrop', size=(100, 50))])
    image = {key: bev_results()[key] for key in ('img', 'calibration')}
    crop.transforms.transforms.insert(0, lambda camera: camera | image)
    np.random.seed(0)
    sample = dict(
        token='t',
        img_path=['a.jpg', 'b.jpg'],
        intrinsics=[np.eye(3)] * 2,
        cam2bev=[np.eye(4)] * 2,
    )
    after = crop(sample)
    assert after['token'] == 't'
    assert after['img_path'] == ['a.jpg', 'b.jpg']
    assert [image.shape for image in after['img']] == [(50, 100, 3)] * 2
    first, second = (camera.intrinsics[:2, 2].tolist() for camera in after['calibration'])
    assert first != second


def test_samples_of_one_camera_are_refused() -> None:
    with pytest.raises(ValueError, match='one img_path per camera, found str; use the data set'):
        EachCamera([])(bev_results())


def test_flips_of_single_cameras_are_refused_and_none_is_passed_on() -> None:
    flip = EachCamera([dict(type='BEVRandomFlip', prob=1.0)])
    image = {key: bev_results()[key] for key in ('img', 'calibration')}
    flip.transforms.transforms.insert(0, lambda camera: camera | image)
    sample = dict(img_path=['a.jpg'], intrinsics=[np.eye(3)], cam2bev=[np.eye(4)])
    with pytest.raises(ValueError, match='put BEVRandomFlip after EachCamera'):
        flip(sample)
    flip.transforms.transforms[:] = [lambda camera: None]
    assert flip(sample) is None
