"""One camera's calibration, following the image through the pipeline.

Pixel coordinates name pixel *centres*: the top-left pixel covers [-0.5, 0.5].
Camera axes: x right, y down, z forward.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np


def check_intrinsics(matrix: Any, where: str) -> np.ndarray:
    """Return a valid 3x3 float64 intrinsic matrix, or raise ValueError naming `where`."""
    try:
        array = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            f'{where}: intrinsics must be a 3x3 matrix of numbers, found {matrix!r:.80}'
        ) from None
    if array.shape != (3, 3):
        raise ValueError(f'{where}: intrinsics must be 3x3, found shape {array.shape}')
    if not np.isfinite(array).all():
        raise ValueError(f'{where}: intrinsics contain NaN or infinity: {array.tolist()}')
    # The condition number is scale-free, unlike the determinant.
    if np.linalg.cond(array) > 1e12:
        raise ValueError(f'{where}: intrinsics are not invertible: {array.tolist()}')
    return array


@dataclass(frozen=True, eq=False)
class Calibration:
    """Intrinsics of an image as it is now, and as the camera delivered it.

    Args:
        intrinsics: 3x3, maps camera coordinates to pixels of the current image.
        size: Width and height of the current image.
        native_intrinsics: 3x3 at native resolution; never changes.
        mirrored: Whether the scene has been mirrored left to right.
    """

    intrinsics: np.ndarray
    size: tuple[int, int]
    native_intrinsics: np.ndarray
    mirrored: bool = False

    @classmethod
    def native(cls, intrinsics: np.ndarray, size: tuple[int, int]) -> Calibration:
        """Calibration of an image that nothing has been done to yet."""
        return cls(intrinsics, size, intrinsics)

    def _moved(self, pixel_map: np.ndarray, size: tuple[int, int]) -> Calibration:
        return replace(self, intrinsics=pixel_map @ self.intrinsics, size=size)

    def resized(self, width: int, height: int) -> Calibration:
        """The image was resized to `width` x `height` (pixel centres kept, as OpenCV does)."""
        sx, sy = width / self.size[0], height / self.size[1]
        pixel_map = np.array([[sx, 0, (sx - 1) / 2], [0, sy, (sy - 1) / 2], [0, 0, 1.0]])
        return self._moved(pixel_map, (width, height))

    def cropped(self, left: int, top: int, width: int, height: int) -> Calibration:
        """The image was cropped; the box may reach outside of it (padding)."""
        pixel_map = np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1.0]])
        return self._moved(pixel_map, (width, height))

    def flipped(self) -> Calibration:
        """The image was flipped left to right, and the scene with it: x becomes -x.

        Mirroring both keeps the focal length positive, as a real camera has it.
        """
        mirror = np.diag([-1.0, 1.0, 1.0])
        pixel_map = np.array([[-1, 0, self.size[0] - 1], [0, 1, 0], [0, 0, 1.0]])
        flipped = self._moved(pixel_map, self.size)
        return replace(flipped, intrinsics=flipped.intrinsics @ mirror, mirrored=not self.mirrored)

    def project(self, points: np.ndarray) -> np.ndarray:
        """Pixels (..., 2) of points (..., 3) given in the scene as it was recorded."""
        points = np.asarray(points, dtype=np.float64)
        if self.mirrored:
            points = points * np.array([-1.0, 1.0, 1.0])
        pixels = points @ self.intrinsics.T
        return pixels[..., :2] / pixels[..., 2:]

    def legacy_intrinsics(self, size: tuple[int, int]) -> np.ndarray:
        """What the older code used: native values scaled for one fixed size.

        The 1600x900 of the native image is hard-coded, and neither crops nor
        flips move the principal point.
        """
        scale = np.diag([size[0] / 1600, size[1] / 900, 1.0])
        return scale @ self.native_intrinsics
