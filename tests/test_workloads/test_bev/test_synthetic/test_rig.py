"""Cameras of a rig are mounted as in nuScenes, and never level."""

from __future__ import annotations

import numpy as np
import pytest

from mmtempo.workloads.bev.structures.calibration import CAMERA_NAMES
from mmtempo.workloads.bev.synthetic.rig import VEHICLES
from tests.testing.bev_scenes import calibration


def test_no_camera_is_level() -> None:
    """Code that ignores pitch or roll is off by pixels, even in small images."""
    for vehicle in range(VEHICLES):
        for entry in calibration(vehicle, (352, 198)).values():
            cam2ego, intrinsics = entry['cam2ego'], entry['intrinsics']
            assert np.allclose(cam2ego[:3, :3] @ cam2ego[:3, :3].T, np.eye(3))
            assert np.linalg.det(cam2ego[:3, :3]) == pytest.approx(1)
            right, _, ahead = cam2ego[:3, :3].T
            degrees = np.degrees(np.arcsin(np.abs([right[2], ahead[2]])))
            assert (degrees > 0.4).all()
            assert (degrees < 1.6).all()
            assert 1.4 <= cam2ego[2, 3] <= 1.9
            assert intrinsics[1, 1] * abs(ahead[2]) > 1  # pixels, by pitch alone


def test_vehicles_differ_and_are_repeatable() -> None:
    rigs = [calibration(vehicle) for vehicle in range(VEHICLES)]
    assert len({repr(rig) for rig in rigs}) == VEHICLES
    assert repr(rigs) == repr([calibration(vehicle) for vehicle in range(VEHICLES)])
    yaws = {'CAM_FRONT': 0, 'CAM_BACK_LEFT': 110, 'CAM_BACK': 180, 'CAM_FRONT_RIGHT': -55}
    for rig in rigs:
        assert tuple(rig) == CAMERA_NAMES
        for name, yaw in yaws.items():
            ahead = rig[name]['cam2ego'][:3, 2]
            angle = np.degrees(np.arctan2(ahead[1], ahead[0])) - yaw
            assert abs((angle + 180) % 360 - 180) < 5
