"""Six cameras around a vehicle, mounted as in nuScenes, with small differences per vehicle."""

from __future__ import annotations

import numpy as np

from mmtempo.workloads.bev.structures.calibration import CAMERA_NAMES

from .camera import Camera, View

# For each of `CAMERA_NAMES`: yaw in degrees to the left; position in meters to the right and ahead
# of the vehicle's center; focal length and principal point in pixels at 1600 x 900.
MOUNTS = (
    (55.0, -0.5, 1.5, 1266.0, 826.0, 480.0),
    (0.0, 0.0, 1.7, 1266.0, 816.0, 491.0),
    (-55.0, 0.5, 1.5, 1266.0, 785.0, 471.0),
    (110.0, -0.5, 0.1, 1266.0, 792.0, 469.0),
    (180.0, 0.0, 0.0, 809.0, 829.0, 481.0),
    (-110.0, 0.5, 0.1, 1266.0, 807.0, 506.0),
)
# All data sets have the same vehicles, for any seed of the data set.
VEHICLES = 4
VEHICLE_SEED = 1600


def _tilt(rng: np.random.Generator) -> np.ndarray:
    """Return a rotation of pitch and roll; never zero, so that it cannot be ignored unnoticed."""
    pitch, roll = np.radians(rng.uniform(0.5, 1.5, 2) * rng.choice([-1, 1], 2))
    about_x = [[1, 0, 0], [0, np.cos(pitch), -np.sin(pitch)], [0, np.sin(pitch), np.cos(pitch)]]
    about_z = [[np.cos(roll), -np.sin(roll), 0], [np.sin(roll), np.cos(roll), 0], [0, 0, 1]]
    return np.array(about_z) @ np.array(about_x)


def make_rig(vehicle: int, size: tuple[int, int]) -> dict[str, View]:
    """Return the six cameras of a vehicle by name.

    Args:
        vehicle: Number of the vehicle, from 0 to `VEHICLES` - 1.
        size: Width and height of the images, in pixels.
    """
    rng = np.random.default_rng([VEHICLE_SEED, vehicle])
    sx, sy = size[0] / 1600, size[1] / 900
    roof = rng.uniform(1.45, 1.85)
    views = {}
    for name, (left, x, z, focal, cx, cy) in zip(CAMERA_NAMES, MOUNTS):
        focal *= rng.uniform(0.9, 1.1)
        cx, cy = rng.uniform(-15, 15, 2) + (cx, cy)
        intrinsics = np.array([[focal * sx, 0, cx * sx], [0, focal * sy, cy * sy], [0, 0, 1.0]])
        camera = Camera(intrinsics, size, roof + rng.uniform(-0.05, 0.05), _tilt(rng))
        yaw = -np.radians(left + rng.uniform(-3, 3))
        x, z = rng.uniform(-0.1, 0.1, 2) + (x, z)
        views[name] = View(camera, x, z, yaw)
    return views
