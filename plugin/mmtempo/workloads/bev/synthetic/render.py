"""Rendering of a scene: images of pinhole cameras, and the label that agrees with them."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from mmtempo.workloads.bev.structures.grid import LABEL_GRID, BEVGrid
from mmtempo.workloads.bev.structures.labels import CLASSES, PALETTE, pack_label

from .camera import Camera, View
from .scene import Box, Scene

GRASS = (70, 110, 70)
SKY = (205, 190, 170)
RESOLUTION = 0.1  # meters per pixel of the ground image
REACH = 80.0  # meters that the ground image extends ahead and to each side
NEAR = 0.2  # meters from a camera to its near plane
# Sides of a box by indices of corners: 0-3 below, 4-7 above.
SIDES = ((0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7))
SIDE_LIGHT = (0.75, 0.9, 0.6, 0.85)
SHIFT = 4  # fractional bits of polygon corners
# Scale of the occlusion map, which may be coarser than the image.
SEEN_SCALE = 0.5
# The grid of a label around a vehicle: row 0 is rearmost, column 0 leftmost.
SURROUND_GRID = BEVGrid(x=(-50.0, 50.0, 0.5), z=(-50.0, 50.0, 0.5))


def _bgr(name: str, light: float = 1.0) -> tuple[float, float, float]:
    red, green, blue = PALETTE[CLASSES.index(name)]
    return tuple(min(255.0, light * channel) for channel in (blue, green, red))  # type: ignore


def _fill(image: np.ndarray, corners: np.ndarray, color: tuple | int) -> None:
    """Fill a convex polygon given in pixel coordinates."""
    fixed = np.round(np.clip(corners, -1e6, 1e6) * (1 << SHIFT)).astype(np.int32)
    cv2.fillConvexPoly(image, fixed, color, lineType=cv2.LINE_8, shift=SHIFT)


def _draw_from_above(
    scene: Scene, rng: np.random.Generator, back: float
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the ground from above, down to z = -`back`.

    Returns:
        The image, and the matrix (3, 3) that turns its pixels (u, v, 1) into (x, z, 1).
    """
    wide, deep = round(2 * REACH / RESOLUTION), round((REACH + back) / RESOLUTION)
    canvas = np.full((deep, wide, 3), GRASS, np.uint8)
    for ground in scene.grounds:
        pixels = (ground.corners + np.array([REACH, back])) / RESOLUTION - 0.5
        _fill(canvas, pixels, _bgr(ground.name))
    coarse = rng.integers(0, 28, (deep // 4, wide // 4, 1), dtype=np.uint8)
    texture = cv2.resize(coarse, (wide, deep), interpolation=cv2.INTER_NEAREST)
    canvas = cv2.subtract(canvas, cv2.merge([texture] * 3))
    to_ground = np.array(
        [
            [RESOLUTION, 0, RESOLUTION / 2 - REACH],
            [0, RESOLUTION, RESOLUTION / 2 - back],
            [0, 0, 1],
        ]
    )
    return canvas, to_ground


def _draw_ground(view: View, canvas: np.ndarray, to_ground: np.ndarray) -> np.ndarray:
    """Draw ground and sky as a camera sees them, by one homography."""
    camera = view.camera
    to_pixels = camera.intrinsics @ (camera.rotation @ (view.from_ground @ to_ground))
    image = cv2.warpPerspective(canvas, to_pixels, camera.size, borderValue=GRASS)
    image[camera.sees_sky()] = SKY
    return image


def _clip(polygon: np.ndarray) -> np.ndarray:
    """Clip a convex polygon (n, 3) at the near plane; the result may be empty."""
    ahead = polygon[:, 2] >= NEAR
    if ahead.all():
        return polygon
    kept = []
    for i, (start, end) in enumerate(zip(polygon, np.roll(polygon, -1, axis=0))):
        if ahead[i]:
            kept.append(start)
        if ahead[i] != ahead[(i + 1) % len(polygon)]:
            kept.append(start + (NEAR - start[2]) / (end[2] - start[2]) * (end - start))
    return np.array(kept).reshape(-1, 3)


def _visible_sides(box: Box, camera: Camera) -> list[tuple[np.ndarray, float]]:
    """Return corners in pixels and brightness of the top and of the sides that face the camera.

    The box is in the level frame. Polygons are clipped at the near plane.
    """
    base = box.corners
    low = np.column_stack([base[:, 0], np.full(4, camera.height), base[:, 1]])
    high = low - np.array([0.0, box.height, 0.0])
    corners = camera.turn(np.concatenate([low, high]))
    sides = []
    for side, light in zip(SIDES, SIDE_LIGHT):
        start, end = base[side[0]], base[side[1]]
        outward = np.array([end[1] - start[1], start[0] - end[0]])
        if outward @ start < 0:
            sides.append((_clip(corners[list(side)]), light))
    if box.height < camera.height:
        sides.append((_clip(corners[4:]), 1.1))
    return [(camera.to_pixels(side), light) for side, light in sides if len(side)]


def _far_to_near(scene: Scene) -> list[tuple[int, Box]]:
    """Return the boxes with their numbers (from 1), in drawing order."""
    numbered = list(enumerate(scene.boxes, start=1))
    return sorted(numbered, key=lambda item: -np.hypot(item[1].x, item[1].z))


def _render(
    scene: Scene, views: Sequence[View], rng: np.random.Generator, back: float
) -> list[np.ndarray]:
    canvas, to_ground = _draw_from_above(scene, rng, back)
    images = []
    for view in views:
        image = _draw_ground(view, canvas, to_ground)
        for _, box in _far_to_near(scene.seen_from(view.x, view.z, view.yaw)):
            for corners, light in _visible_sides(box, view.camera):
                _fill(image, corners, _bgr(box.name, light * box.shade))
        light = rng.uniform(0.75, 1.15)
        images.append(cv2.convertScaleAbs(image, alpha=light, beta=0))
    return images


def render_image(scene: Scene, camera: Camera, rng: np.random.Generator) -> np.ndarray:
    """Render the image (height, width, 3), BGR, of a camera at the scene's origin."""
    return _render(scene, [View(camera)], rng, back=0.0)[0]


def render_views(scene: Scene, views: Sequence[View], rng: np.random.Generator) -> list[np.ndarray]:
    """Render the images (height, width, 3), BGR, of cameras that look in any direction."""
    return _render(scene, views, rng, back=REACH)


def _seen(scene: Scene, view: View) -> np.ndarray:
    """Return the number of the box that each pixel of a coarser image shows; 0 is none."""
    width, height = view.camera.size
    size = (max(round(height * SEEN_SCALE), 1), max(round(width * SEEN_SCALE), 1))
    seen = np.zeros(size, np.uint8)
    for number, box in _far_to_near(scene.seen_from(view.x, view.z, view.yaw)):
        for corners, _ in _visible_sides(box, view.camera):
            _fill(seen, (corners + 0.5) * SEEN_SCALE - 0.5, number)
    return seen


def _inside(corners: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return whether points are in a convex polygon, whose corners may be in either direction."""
    sides = []
    for start, end in zip(corners, np.roll(corners, -1, axis=0)):
        edge = end - start
        sides.append(edge[0] * (z - start[1]) - edge[1] * (x - start[0]))
    stacked = np.stack(sides)
    return np.logical_or((stacked >= 0).all(0), (stacked <= 0).all(0))


def _occupy(scene: Scene, x: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return classes (classes, rows, columns) and box number at the center of each cell."""
    occupancy = np.zeros((len(CLASSES), *x.shape), bool)
    numbers = np.zeros(x.shape, int)
    for ground in scene.grounds:
        here = _inside(ground.corners, x, z)
        # A crossing is part of the road; other areas replace the areas below them.
        if ground.name != 'ped_crossing':
            occupancy[:, here] = False
        occupancy[CLASSES.index(ground.name)] |= here
    for number, box in enumerate(scene.boxes, start=1):
        here = _inside(box.corners, x, z)
        occupancy[CLASSES.index(box.name)] |= here
        numbers[here] = number
    return occupancy, numbers


def _visible(
    scene: Scene, view: View, x: np.ndarray, z: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Return whether a camera sees each cell; a box is seen as a whole or not at all."""
    camera = view.camera
    centers = np.stack([x, z, np.ones_like(x)], -1).reshape(-1, 3)
    points = camera.turn(centers @ view.from_ground.T)
    ahead = points[:, 2] > NEAR
    points[~ahead, 2] = NEAR  # avoids a division by zero; `ahead` masks these points
    u, v = camera.to_pixels(points).T.reshape(2, *x.shape)
    in_view = (u >= -0.5) & (u <= camera.size[0] - 0.5) & ahead.reshape(x.shape)
    in_image = in_view & (v >= -0.5) & (v <= camera.size[1] - 0.5)
    seen = _seen(scene, view)
    seen_row = np.clip(((v + 0.5) * SEEN_SCALE).astype(int), 0, seen.shape[0] - 1)
    seen_column = np.clip(((u + 0.5) * SEEN_SCALE).astype(int), 0, seen.shape[1] - 1)
    ground_seen = in_image & (seen[seen_row, seen_column] == 0)
    box_seen = in_view & np.isin(numbers, np.unique(seen))
    return np.where(numbers == 0, ground_seen, box_seen)


def label_views(scene: Scene, views: Sequence[View], grid: BEVGrid = SURROUND_GRID) -> np.ndarray:
    """Return the packed label (rows, columns): the classes at the center of each cell.

    Cells that no camera sees are ignored: cells outside of all images, cells of the ground that
    a box hides, and boxes that are hidden completely.

    Args:
        scene: The scene.
        views: The cameras.
        grid: The grid of the label. Defaults to `SURROUND_GRID`.
    """
    column, row = np.meshgrid(np.arange(grid.columns) + 0.5, np.arange(grid.rows) + 0.5)
    x, z = grid.x[0] + column * grid.x[2], grid.z[0] + row * grid.z[2]
    occupancy, numbers = _occupy(scene, x, z)
    visible = np.zeros(x.shape, bool)
    for view in views:
        visible |= _visible(scene, view, x, z, numbers)
    return pack_label(occupancy & visible, ~visible)


def make_label(scene: Scene, camera: Camera, grid: BEVGrid = LABEL_GRID) -> np.ndarray:
    """Return the label for one camera at the scene's origin; see `label_views`."""
    return label_views(scene, [View(camera)], grid)
