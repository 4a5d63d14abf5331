"""Cameras of synthetic scenes, and bits and cells of their labels."""

from __future__ import annotations

import hashlib
from pathlib import Path

import cv2
import numpy as np

from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT, PALETTE
from mmtempo.workloads.bev.synthetic import Camera, make_rig

CAMERA = Camera(np.array([[700.0, 0, 500], [0, 700.0, 260], [0, 0, 1]]), (1000, 560))
SIZE = (640, 360)  # width and height of the images of a rig


def bits(label: np.ndarray, name: str) -> np.ndarray:
    """Return which cells carry a class."""
    return (label >> CLASSES.index(name)) & 1 == 1


def ignored(label: np.ndarray) -> np.ndarray:
    """Return which cells are ignored."""
    return label >> IGNORE_BIT & 1 == 1


def front_cell(x: float, z: float) -> tuple[int, int]:
    """Return row and column of a position in `LABEL_GRID`."""
    return int((z - 1) / 0.25), int((x + 25) / 0.25)


def surround_cell(x: float, z: float) -> tuple[int, int]:
    """Return row and column of a position in `SURROUND_GRID`."""
    return int((z + 50) / 0.5), int((x + 50) / 0.5)


def calibration(vehicle: int, size: tuple[int, int] = SIZE) -> dict[str, dict]:
    """Return the entry of `calib.json` of a vehicle, as arrays."""
    return {
        name: dict(intrinsics=view.camera.intrinsics, cam2ego=view.cam2ego)
        for name, view in make_rig(vehicle, size).items()
    }


def cell_pixels(entry: dict, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Project the centers of the cells of `SURROUND_GRID` by the calibration of a camera.

    Returns:
        Pixels (200, 200, 2), and whether they are in the image (200, 200).
    """
    left_to_right = -50 + (np.arange(200) + 0.5) * 0.5
    x, z = np.meshgrid(left_to_right, left_to_right)
    ego = np.stack([z, -x, np.zeros_like(x), np.ones_like(x)], -1)
    camera = (ego @ np.linalg.inv(np.array(entry['cam2ego'])).T)[..., :3]
    depth = camera[..., 2:]
    uv = (camera / np.where(np.abs(depth) < 1e-6, 1e-6, depth)) @ np.array(entry['intrinsics']).T
    uv = uv[..., :2]
    inside = ((uv >= -0.5) & (uv <= np.array(size) - 0.5)).all(-1)
    return uv, inside & (depth[..., 0] > 0.2)


def chromaticity(image: np.ndarray) -> np.ndarray:
    """Return colors without brightness, which texture and light change."""
    return image / np.maximum(image.sum(-1, keepdims=True, dtype=float), 1)


def is_class(image: np.ndarray, name: str) -> np.ndarray:
    """Return which pixels have the color of a class."""
    color = np.array(PALETTE[CLASSES.index(name)][::-1], float)
    return np.abs(chromaticity(image) - color / color.sum()).max(-1) < 0.08


def read_label(path: Path) -> np.ndarray:
    """Return a label file as it is."""
    label = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert label is not None, path
    return label


def digest(root: Path) -> dict[str, str]:
    """Return the hash of each file below a folder."""
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }
