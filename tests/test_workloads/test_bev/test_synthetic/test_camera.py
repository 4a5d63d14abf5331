"""Projection, horizon and pose of a camera agree."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.workloads.bev.synthetic.camera import Camera, View
from tests.testing.bev_scenes import CAMERA, SIZE, calibration


def pitched(degrees: float) -> Camera:
    """Return `CAMERA`, turned down by an angle."""
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    rotation = np.array([[1, 0, 0], [0, cos, -sin], [0, sin, cos]])
    return Camera(CAMERA.intrinsics, CAMERA.size, rotation=rotation)


def test_projects_by_intrinsics_and_rotation() -> None:
    points = np.array([[0.0, 0, 10], [2, 1, 10]])
    np.testing.assert_allclose(CAMERA.project(points), [[500, 260], [640, 330]])
    pixel = pitched(10).project(points[:1])[0]
    np.testing.assert_allclose(pixel, [500, 260 - 700 * np.tan(np.radians(10))])


@pytest.mark.parametrize('degrees', [-5.0, 0.0, 5.0])
def test_sky_is_above_the_horizon(degrees: float) -> None:
    camera = pitched(degrees)
    sky = camera.sees_sky()
    assert sky.shape == (560, 1000)
    horizon = camera.project(np.array([[0.0, 0, 1]]))[0, 1]
    rows = np.arange(560)
    np.testing.assert_array_equal(sky.all(1), rows < horizon)
    np.testing.assert_array_equal(sky.any(1), rows < horizon)


def test_pose_and_ground_matrix_of_a_view_agree() -> None:
    """A ground point has the same pixel by `from_ground` and by `cam2ego`."""
    view = View(pitched(4), x=1.0, z=-2.0, yaw=0.7)
    x, z = 8.0, 9.0
    expected = view.camera.project((view.from_ground @ [x, z, 1])[None])[0]
    ego = np.array([z, -x, 0, 1])  # x ahead, y left, z up
    camera = (np.linalg.inv(view.cam2ego) @ ego)[:3]
    assert camera[2] > 5
    np.testing.assert_allclose(view.camera.to_pixels(camera[None])[0], expected)


def test_view_looks_along_its_yaw() -> None:
    ahead = View(CAMERA, yaw=np.pi / 2).cam2ego[:3, 2]
    np.testing.assert_allclose(ahead, [0, -1, 0], atol=1e-12)  # to the right
    front = calibration(0, SIZE)['CAM_FRONT']['cam2ego'][:3, 2]
    assert front[0] > 0.99
