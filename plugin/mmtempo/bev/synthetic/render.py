"""A scene through a pinhole camera: its picture, and the label that agrees with it."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from ..grid import LABEL_GRID, BEVGrid
from ..labels import CLASSES, PALETTE, pack_label
from .scene import Box, Scene

GRASS = (70, 110, 70)
SKY = (205, 190, 170)
RESOLUTION = 0.1  # metres a pixel of the ground picture
REACH = 80.0  # metres that the ground picture reaches ahead and to each side
# Sides of a box by corner numbers: 0-3 below, 4-7 above.
SIDES = ((0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7))
SIDE_LIGHT = (0.75, 0.9, 0.6, 0.85)
SHIFT = 4  # fractional bits of polygon corners
# The map of what is seen where may be coarser than the picture.
SEEN_SCALE = 0.5


@dataclass(frozen=True)
class Camera:
    """A level pinhole camera looking along z, `height` metres above the ground."""

    intrinsics: np.ndarray
    size: tuple[int, int]
    height: float = 2.2

    def project(self, points: np.ndarray) -> np.ndarray:
        """Pixels (n, 2) of points (n, 3)."""
        pixels = points @ self.intrinsics.T
        return pixels[:, :2] / pixels[:, 2:]


def _bgr(name: str, light: float = 1.0) -> tuple[float, float, float]:
    red, green, blue = PALETTE[CLASSES.index(name)]
    return tuple(min(255.0, light * channel) for channel in (blue, green, red))  # type: ignore


def _fill(image: np.ndarray, corners: np.ndarray, colour: tuple | int) -> None:
    """Fill a convex polygon given in pixel coordinates."""
    fixed = np.round(np.clip(corners, -1e5, 1e5) * (1 << SHIFT)).astype(np.int32)
    cv2.fillConvexPoly(image, fixed, colour, lineType=cv2.LINE_8, shift=SHIFT)


def _draw_ground(scene: Scene, camera: Camera, rng: np.random.Generator) -> np.ndarray:
    """The ground from above, then through the camera by one homography."""
    wide, deep = round(2 * REACH / RESOLUTION), round(REACH / RESOLUTION)
    canvas = np.full((deep, wide, 3), GRASS, np.uint8)
    for ground in scene.grounds:
        pixels = (ground.corners + np.array([REACH, 0.0])) / RESOLUTION - 0.5
        _fill(canvas, pixels, _bgr(ground.name))
    coarse = rng.integers(0, 28, (deep // 4, wide // 4, 1), dtype=np.uint8)
    texture = cv2.resize(coarse, (wide, deep), interpolation=cv2.INTER_NEAREST)
    canvas = cv2.subtract(canvas, cv2.merge([texture] * 3))
    to_ground = np.array(
        [
            [RESOLUTION, 0, RESOLUTION / 2 - REACH],
            [0, 0, camera.height],
            [0, RESOLUTION, RESOLUTION / 2],
        ]
    )
    image = cv2.warpPerspective(
        canvas, camera.intrinsics @ to_ground, camera.size, borderValue=GRASS
    )
    horizon = int(np.clip(np.ceil(camera.intrinsics[1, 2]), 0, camera.size[1]))
    image[:horizon] = SKY
    return image


def _visible_sides(box: Box, camera: Camera) -> list[tuple[np.ndarray, float]]:
    """Corners in pixels and light of the sides that face the camera, and of the top."""
    base = box.corners
    low = np.column_stack([base[:, 0], np.full(4, camera.height), base[:, 1]])
    high = low - np.array([0.0, box.height, 0.0])
    pixels = camera.project(np.concatenate([low, high]))
    sides = []
    for side, light in zip(SIDES, SIDE_LIGHT):
        start, end = base[side[0]], base[side[1]]
        outward = np.array([end[1] - start[1], start[0] - end[0]])
        if outward @ start < 0:
            sides.append((pixels[list(side)], light))
    if box.height < camera.height:
        sides.append((pixels[4:], 1.1))
    return sides


def _far_to_near(scene: Scene) -> list[tuple[int, Box]]:
    """Boxes with their numbers (from 1), in drawing order."""
    numbered = list(enumerate(scene.boxes, start=1))
    return sorted(numbered, key=lambda item: -np.hypot(item[1].x, item[1].z))


def render_image(scene: Scene, camera: Camera, rng: np.random.Generator) -> np.ndarray:
    """The picture (height, width, 3), BGR."""
    image = _draw_ground(scene, camera, rng)
    for _, box in _far_to_near(scene):
        for corners, light in _visible_sides(box, camera):
            _fill(image, corners, _bgr(box.name, light * box.shade))
    light = rng.uniform(0.75, 1.15)
    return cv2.convertScaleAbs(image, alpha=light, beta=0)


def _seen(scene: Scene, camera: Camera) -> np.ndarray:
    """Which box each pixel of a coarser picture shows; 0 is none."""
    width, height = camera.size
    size = (max(round(height * SEEN_SCALE), 1), max(round(width * SEEN_SCALE), 1))
    seen = np.zeros(size, np.uint8)
    for number, box in _far_to_near(scene):
        for corners, _ in _visible_sides(box, camera):
            _fill(seen, (corners + 0.5) * SEEN_SCALE - 0.5, number)
    return seen


def _inside(corners: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Which of the points lie in a convex polygon, whichever way round it is given."""
    sides = []
    for start, end in zip(corners, np.roll(corners, -1, axis=0)):
        edge = end - start
        sides.append(edge[0] * (z - start[1]) - edge[1] * (x - start[0]))
    stacked = np.stack(sides)
    return np.logical_or((stacked >= 0).all(0), (stacked <= 0).all(0))


def make_label(scene: Scene, camera: Camera, grid: BEVGrid = LABEL_GRID) -> np.ndarray:
    """The packed label (rows, columns): what each cell carries at its centre.

    Ignored is what the camera cannot see: cells outside of its picture, cells of
    the ground hidden behind a box, and boxes that are hidden altogether.
    """
    column, row = np.meshgrid(np.arange(grid.columns) + 0.5, np.arange(grid.rows) + 0.5)
    x, z = grid.x[0] + column * grid.x[2], grid.z[0] + row * grid.z[2]
    occupancy = np.zeros((len(CLASSES), grid.rows, grid.columns), bool)
    for ground in scene.grounds:
        here = _inside(ground.corners, x, z)
        # A crossing is part of the road; everything else covers what lies below it.
        if ground.name != 'ped_crossing':
            occupancy[:, here] = False
        occupancy[CLASSES.index(ground.name)] |= here

    ground_points = np.stack([x, np.full_like(x, camera.height), z], -1).reshape(-1, 3)
    u, v = camera.project(ground_points).T.reshape(2, grid.rows, grid.columns)
    in_view = (u >= -0.5) & (u <= camera.size[0] - 0.5)
    in_picture = in_view & (v <= camera.size[1] - 0.5)
    seen = _seen(scene, camera)
    seen_row = np.clip(((v + 0.5) * SEEN_SCALE).astype(int), 0, seen.shape[0] - 1)
    seen_column = np.clip(((u + 0.5) * SEEN_SCALE).astype(int), 0, seen.shape[1] - 1)
    visible = in_picture & (seen[seen_row, seen_column] == 0)
    numbers = set(np.unique(seen).tolist())
    for number, box in enumerate(scene.boxes, start=1):
        here = _inside(box.corners, x, z)
        occupancy[CLASSES.index(box.name)] |= here
        visible = np.where(here, in_view & (number in numbers), visible)
    return pack_label(occupancy & visible, ~visible)
