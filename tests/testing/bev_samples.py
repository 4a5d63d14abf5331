"""Samples of BEV segmentation, as transforms get them."""

from __future__ import annotations

import numpy as np

from mmtempo.workloads.bev.structures.calibration import Calibration


def bev_results(label: bool = True) -> dict:
    """Return a sample of one camera with a random image of 160 x 90 pixels."""
    rng = np.random.default_rng(0)
    results = dict(
        img=rng.integers(0, 256, (90, 160, 3), np.uint8),
        calibration=Calibration.native(np.diag([100.0, 100, 1]), (160, 90)),
        token='t',
        img_path='t.jpg',
    )
    if label:
        results['gt_bev'] = rng.integers(0, 1 << 15, (6, 8), np.uint16)
    return results


def bev_rig_results() -> dict:
    """Return a sample of two cameras; the second one is moved and turned."""
    pose = np.array([[0.0, 0, 1, 2], [0, 1, 0, -1.5], [-1, 0, 0, 1], [0, 0, 0, 1]])
    cameras = [bev_results(label=False), bev_results(label=False)]
    cameras[1]['img'] = cameras[1]['img'][::-1]
    cameras[1]['calibration'] = Calibration.native(np.diag([90.0, 90, 1]), (160, 90), pose)
    per_camera = {key: [camera[key] for camera in cameras] for key in ('img', 'calibration')}
    return bev_results() | per_camera
