"""A pinhole camera, and where it stands in a scene.

Three frames, all with x right, y down and z ahead: the scene's (BEV, ground at y = 0),
the *level* one (at the camera, turned to where it looks, y still straight down) and the
camera's own, which is the level one tilted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mmtempo.workloads.bev.structures.calibration import EGO_TO_BEV

BEV_TO_EGO = EGO_TO_BEV[:3, :3].T


@dataclass(frozen=True)
class Camera:
    """A pinhole camera `height` metres above the ground.

    `rotation` (3, 3) turns the level frame into the camera's; a level camera, which
    looks along z, needs none.
    """

    intrinsics: np.ndarray
    size: tuple[int, int]
    height: float = 2.2
    rotation: np.ndarray = field(default_factory=lambda: np.eye(3))

    def turn(self, points: np.ndarray) -> np.ndarray:
        """Points (n, 3) of the level frame, in the camera's own."""
        return points @ self.rotation.T

    def to_pixels(self, points: np.ndarray) -> np.ndarray:
        """Pixels (n, 2) of points (n, 3) in the camera's own frame."""
        pixels = points @ self.intrinsics.T
        return pixels[:, :2] / pixels[:, 2:]

    def project(self, points: np.ndarray) -> np.ndarray:
        """Pixels (n, 2) of points (n, 3) of the level frame."""
        return self.to_pixels(self.turn(points))

    def sees_sky(self) -> np.ndarray:
        """Which pixels (height, width) look above the horizon."""
        (fx, _, cx), (_, fy, cy), _ = self.intrinsics
        right = (np.arange(self.size[0]) - cx) / fx
        below = (np.arange(self.size[1])[:, None] - cy) / fy
        down = self.rotation[:, 1]
        return right * down[0] + below * down[1] + down[2] < 0


@dataclass(frozen=True)
class View:
    """A camera at (x, z) of the scene that looks along `yaw`, as a `Box` does."""

    camera: Camera
    x: float = 0.0
    z: float = 0.0
    yaw: float = 0.0

    @property
    def from_ground(self) -> np.ndarray:
        """(3, 3) that turns a place (x, z, 1) on the scene's ground into the level frame."""
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
        """(4, 4) from the camera's frame to nuScenes' ego frame, whose origin is on the ground."""
        cos, sin = np.cos(self.yaw), np.sin(self.yaw)
        level_to_bev = np.array([[cos, 0, sin], [0, 1, 0], [-sin, 0, cos]])
        matrix = np.eye(4)
        matrix[:3, :3] = BEV_TO_EGO @ level_to_bev @ self.camera.rotation.T
        matrix[:3, 3] = BEV_TO_EGO @ np.array([self.x, -self.camera.height, self.z])
        return matrix
