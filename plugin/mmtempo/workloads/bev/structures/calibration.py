"""Calibration of a camera, updated with each transform of its image.

Integer pixel coordinates are pixel *centers*: the top-left pixel covers [-0.5, 0.5].
Axes of the camera frame and of the BEV frame: x right, y down, z ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

# Names of nuScenes' cameras.
CAMERA_NAMES = (
    'CAM_FRONT_LEFT',
    'CAM_FRONT',
    'CAM_FRONT_RIGHT',
    'CAM_BACK_LEFT',
    'CAM_BACK',
    'CAM_BACK_RIGHT',
)
# Turns nuScenes' vehicle axes (x ahead, y left, z up) into those of the BEV frame.
EGO_TO_BEV = np.array([[0.0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0], [0, 0, 0, 1]])


def _matrix(matrix: Any, size: int, what: str, where: str) -> np.ndarray:
    """Return a finite float64 matrix of `size` x `size`, or raise ValueError."""
    try:
        array = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f'{where}: {what} must be a {size}x{size} matrix of numbers, found {matrix!r:.80}'
        ) from None
    if array.shape != (size, size):
        raise ValueError(f'{where}: {what} must be {size}x{size}, found shape {array.shape}')
    if not np.isfinite(array).all():
        raise ValueError(f'{where}: {what} contain NaN or infinity: {array.tolist()}')
    return array


def check_intrinsics(matrix: Any, where: str) -> np.ndarray:
    """Return a valid 3x3 float64 intrinsic matrix.

    Args:
        matrix: The intrinsics, as nested lists or an array.
        where: Token or file that the intrinsics are from; starts the message of the ValueError.
    """
    array = _matrix(matrix, 3, 'intrinsics', where)
    # Unlike the determinant, the condition number does not depend on the scale.
    if np.linalg.cond(array) > 1e12:
        raise ValueError(f'{where}: intrinsics are not invertible: {array.tolist()}')
    return array


def check_pose(matrix: Any, where: str) -> np.ndarray:
    """Return a valid rigid 4x4 float64 transform.

    Args:
        matrix: The pose, as nested lists or an array.
        where: Token or file that the pose is from; starts the message of the ValueError.
    """
    array = _matrix(matrix, 4, 'the numbers of a pose', where)
    rotation = array[:3, :3]
    rigid = np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3)
    right_handed = np.linalg.det(rotation) > 0
    if not (rigid and right_handed and np.allclose(array[3], [0, 0, 0, 1])):
        raise ValueError(
            f'{where}: a pose must be a rotation and a translation, found {array.tolist()}'
        )
    return array


def pixel_to_bev(intrinsics: np.ndarray, cam2bev: np.ndarray) -> np.ndarray:
    """Return matrices (..., 4, 4) that turn pixels and depths into points of the BEV frame.

    Pixel (u, v) at depth d is the point ``d * a[:3] / a[3] + matrix[:3, 3]`` of the BEV
    frame, with ``a = matrix[:, :3] @ (u, v, 1)``.

    Args:
        intrinsics: Intrinsics (..., 3, 3).
        cam2bev: Poses (..., 4, 4) that map camera coordinates to the BEV frame.
    """
    matrix = np.zeros(np.broadcast_shapes(intrinsics.shape[:-2], cam2bev.shape[:-2]) + (4, 4))
    to_camera = np.linalg.inv(intrinsics)
    matrix[..., :3, :3] = cam2bev[..., :3, :3] @ to_camera
    matrix[..., :3, 3] = cam2bev[..., :3, 3]
    matrix[..., 3, :3] = to_camera[..., 2, :]
    return matrix


@dataclass(frozen=True, eq=False)
class Calibration:
    """Intrinsics of the current image and of the native image, and the pose of the camera.

    Args:
        intrinsics: 3x3 matrix that maps camera coordinates to pixels of the current image.
        size: Width and height of the current image, in pixels.
        native_intrinsics: 3x3 intrinsics at native resolution; transforms do not change them.
        mirrored: Whether the scene is mirrored left to right. Defaults to False.
        cam2bev: 4x4 matrix that maps camera coordinates to the BEV frame; by default the
            identity, for a BEV frame that is the camera frame.
    """

    intrinsics: np.ndarray
    size: tuple[int, int]
    native_intrinsics: np.ndarray
    mirrored: bool = False
    cam2bev: np.ndarray = field(default_factory=lambda: np.eye(4))

    @classmethod
    def native(
        cls, intrinsics: np.ndarray, size: tuple[int, int], cam2bev: np.ndarray | None = None
    ) -> Calibration:
        """Return the calibration of an image at native resolution."""
        return cls(intrinsics, size, intrinsics, cam2bev=np.eye(4) if cam2bev is None else cam2bev)

    def _moved(self, pixel_map: np.ndarray, size: tuple[int, int]) -> Calibration:
        return replace(self, intrinsics=pixel_map @ self.intrinsics, size=size)

    def resized(self, width: int, height: int) -> Calibration:
        """Return the calibration after a resize to `width` x `height`.

        The outer edges of the image stay in place, as in OpenCV; the corner pixels' centers move.
        """
        sx, sy = width / self.size[0], height / self.size[1]
        pixel_map = np.array([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2], [0, 0, 1.0]])
        return self._moved(pixel_map, (width, height))

    def cropped(self, left: int, top: int, width: int, height: int) -> Calibration:
        """Return the calibration after a crop; the box may exceed the image (padding)."""
        pixel_map = np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1.0]])
        return self._moved(pixel_map, (width, height))

    def flipped(self) -> Calibration:
        """Return the calibration after a left-right flip of image and scene: x becomes -x.

        Because both are mirrored, the focal length stays positive, as that of a real camera.
        """
        mirror = np.diag([-1.0, 1.0, 1.0, 1.0])
        pixel_map = np.array([[-1, 0, self.size[0] - 1], [0, 1, 0], [0, 0, 1.0]])
        flipped = self._moved(pixel_map, self.size)
        return replace(
            flipped,
            intrinsics=flipped.intrinsics @ mirror[:3, :3],
            cam2bev=mirror @ self.cam2bev @ mirror,
            mirrored=not self.mirrored,
        )

    def project(self, points: np.ndarray) -> np.ndarray:
        """Project points (..., 3) of the BEV frame, before any flip, to pixels (..., 2)."""
        points = np.asarray(points, dtype=np.float64)
        if self.mirrored:
            points = points * np.array([-1.0, 1.0, 1.0])
        # The pose is rigid, so the inverse of its rotation is the transpose.
        points = (points - self.cam2bev[:3, 3]) @ self.cam2bev[:3, :3]
        pixels = points @ self.intrinsics.T
        return pixels[..., :2] / pixels[..., 2:]

    def legacy_intrinsics(self, size: tuple[int, int]) -> np.ndarray:
        """Return the intrinsics that the older code used: native values scaled to a fixed size.

        As in the older code, the native size is hard-coded as 1600 x 900, and crops and flips
        do not move the principal point.
        """
        scale = np.diag([size[0] / 1600, size[1] / 900, 1.0])
        return scale @ self.native_intrinsics
