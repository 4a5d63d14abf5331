"""Pinhole camera and its position in a scene.

There are three frames, all with x right, y down and z ahead:

- the scene frame: the BEV frame, with the ground at y = 0;
- the *level* frame: at the camera, turned by its yaw, with y straight down;
- the camera frame: the level frame, tilted by the pitch and roll of the camera.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mmtempo.workloads.bev.structures.calibration import EGO_TO_BEV

BEV_TO_EGO = EGO_TO_BEV[:3, :3].T


@dataclass(frozen=True)
class Camera:
    """Pinhole camera above the ground.

    Args:
        intrinsics: 3x3 matrix that maps camera coordinates to pixels.
        size: Width and height of the image, in pixels.
        height: Height above the ground, in meters. Defaults to 2.2.
        rotation: Rotation (3, 3) from the level frame to the camera frame; by default the
            identity, for a camera without pitch and roll.
    """

    intrinsics: np.ndarray
    size: tuple[int, int]
    height: float = 2.2
    rotation: np.ndarray = field(default_factory=lambda: np.eye(3))

    def turn(self, points: np.ndarray) -> np.ndarray:
        """Turn points (n, 3) of the level frame into the camera frame."""
        return points @ self.rotation.T

    def to_pixels(self, points: np.ndarray) -> np.ndarray:
        """Project points (n, 3) of the camera frame to pixels (n, 2)."""
        pixels = points @ self.intrinsics.T
        return pixels[:, :2] / pixels[:, 2:]

    def project(self, points: np.ndarray) -> np.ndarray:
        """Project points (n, 3) of the level frame to pixels (n, 2)."""
        return self.to_pixels(self.turn(points))

    def sees_sky(self) -> np.ndarray:
        """Return whether each pixel (height, width) is above the horizon."""
        (fx, _, cx), (_, fy, cy), _ = self.intrinsics
        right = (np.arange(self.size[0]) - cx) / fx
        below = (np.arange(self.size[1])[:, None] - cy) / fy
        down = self.rotation[:, 1]
        return right * down[0] + below * down[1] + down[2] < 0


@dataclass(frozen=True)
class View:
    """Camera with a position and a direction in the scene.

    Args:
        camera: The camera.
        x: Position to the right, in meters. Defaults to 0.0.
        z: Position ahead, in meters. Defaults to 0.0.
        yaw: Direction in radians, from straight ahead to the right, as for `Box`.
            Defaults to 0.0.
    """

    camera: Camera
    x: float = 0.0
    z: float = 0.0
    yaw: float = 0.0

    @property
    def from_ground(self) -> np.ndarray:
        """Matrix (3, 3) that turns ground points (x, z, 1) of the scene into the level frame."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        return np.array(
            [
                [cos, -sin, sin * self.z - cos * self.x],
                [0, 0, self.camera.height],
                [sin, cos, -sin * self.x - cos * self.z],
            ]
        )

    @property
    def cam2ego(self) -> np.ndarray:
        """Matrix (4, 4) from the camera frame to nuScenes' ego frame, with origin on the ground."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        level_to_bev = np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
        matrix = np.eye(4)
        matrix[:3, :3] = BEV_TO_EGO @ level_to_bev @ self.camera.rotation.T
        matrix[:3, 3] = BEV_TO_EGO @ np.array([self.x, -self.camera.height, self.z])
        return matrix
