"""Street scene, seen from above: flat ground areas, and boxes that stand on them.

Coordinates are those of the viewer, which is a camera or a vehicle with several cameras: x right,
z ahead, in meters. Every shape is a convex polygon of (x, z) corners.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mmtempo.workloads.bev.structures.labels import CLASSES

# Width, length and height in meters of a typical object of each class.
SIZES = {
    'car': (1.9, 4.6, 1.7),
    'truck': (2.5, 7.0, 2.9),
    'bus': (2.9, 11.0, 3.4),
    'trailer': (2.6, 10.0, 3.8),
    'construction_vehicle': (2.7, 6.0, 3.0),
    'pedestrian': (0.8, 0.8, 1.75),
    'motorcycle': (0.9, 2.1, 1.5),
    'bicycle': (0.8, 1.8, 1.4),
    'traffic_cone': (0.6, 0.6, 1.0),
    'barrier': (2.4, 0.7, 1.0),
}
# Probabilities of the frequent classes; every other class has 0.07.
FREQUENT = {'car': 0.34, 'truck': 0.12, 'bus': 0.08, 'trailer': 0.06, 'pedestrian': 0.12}
# A rare class that is absent, as in small real data sets.
ABSENT = ('construction_vehicle',)


@dataclass(frozen=True)
class Ground:
    """Flat area of a class; later areas of a scene cover earlier ones."""

    name: str
    corners: np.ndarray


@dataclass(frozen=True)
class Box:
    """Upright box on the ground.

    Args:
        name: Class of the object.
        x: Position of the center to the right, in meters.
        z: Position of the center ahead, in meters.
        yaw: Direction of the length in radians, from straight ahead to the right.
        width: Width in meters.
        length: Length in meters.
        height: Height in meters.
        shade: Factor of the brightness of its color. Defaults to 1.0.
    """

    name: str
    x: float
    z: float
    yaw: float
    width: float
    length: float
    height: float
    shade: float = 1.0

    @property
    def corners(self) -> np.ndarray:
        """Corners (4, 2) of the footprint, in order around the box."""
        return _rectangle(self.x, self.z, self.width, self.length, self.yaw)


@dataclass(frozen=True)
class Scene:
    """Ground areas in drawing order, and boxes in any order."""

    grounds: tuple[Ground, ...]
    boxes: tuple[Box, ...]

    def seen_from(self, x: float, z: float, yaw: float) -> Scene:
        """Return the scene in the frame of a viewer at (x, z) that looks along `yaw`."""
        origin = np.array([x, z])
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        grounds = [Ground(area.name, (area.corners - origin) @ turn.T) for area in self.grounds]
        boxes = []
        for box in self.boxes:
            right, ahead = turn @ (np.array([box.x, box.z]) - origin)
            boxes.append(replace(box, x=right, z=ahead, yaw=box.yaw - yaw))
        return Scene(tuple(grounds), tuple(boxes))


@dataclass(frozen=True)
class Layout:
    """Positions of a scene's parts relative to its viewer; ranges are along the road, in meters.

    Args:
        offset: Largest distance of the road's middle to the left or right, in meters.
        middle: Distance of the road's middle ahead, in meters.
        carpark: Range of the carpark.
        side_road: Range of the side road.
        crossing: Range of the pedestrian crossing.
        along: Range of objects on the road.
        tries: Range of the number of objects to place; objects without room are left out.
        around: Whether objects are on all sides of the viewer, and also off the road.
            Defaults to False.
    """

    offset: float
    middle: float
    carpark: tuple[float, float]
    side_road: tuple[float, float]
    crossing: tuple[float, float]
    along: tuple[float, float]
    tries: tuple[int, int]
    around: bool = False

    def has_room(self, x: float, z: float, radius: float) -> bool:
        """Return whether an object keeps its distance to the viewer."""
        if self.around:
            return bool(np.hypot(x, z) - radius > 3.0)
        # No part of an object may be nearer than the near plane of the camera.
        return bool(z - radius > 2.0)


AHEAD = Layout(7.0, 25.0, (-15, 15), (-5, 20), (-18, 10), (-22, 24), (5, 16))
AROUND = Layout(3.0, 0.0, (-30, 30), (-30, 30), (-25, 25), (-50, 50), (32, 55), around=True)


@dataclass(frozen=True)
class Strip:
    """Area of objects: a strip along an axis through (x, z).

    Args:
        x: Position to the right, in meters.
        z: Position ahead, in meters.
        yaw: Direction of the axis in radians, from straight ahead to the right.
        along: Range of objects along the axis, in meters.
        reach: Largest distance of vehicles from the axis, in meters.
        margin: Meters that pedestrians and small objects may be further out than vehicles.
            Defaults to 0.0.
    """

    x: float
    z: float
    yaw: float
    along: tuple[float, float]
    reach: float
    margin: float = 0.0


def _rectangle(x: float, z: float, width: float, length: float, yaw: float) -> np.ndarray:
    """Return the corners (4, 2) of a rectangle whose length points along `yaw`."""
    along = np.array([np.sin(yaw), np.cos(yaw)]) * length / 2
    across = np.array([np.cos(yaw), -np.sin(yaw)]) * width / 2
    center = np.array([x, z])
    return center + np.stack([-across - along, across - along, across + along, along - across])


def _shifted(x: float, z: float, yaw: float, right: float, ahead: float) -> tuple[float, float]:
    """Return the position `right` of a road's axis and `ahead` along it, in meters."""
    return (
        x + right * np.cos(yaw) + ahead * np.sin(yaw),
        z - right * np.sin(yaw) + ahead * np.cos(yaw),
    )


def make_scene(rng: np.random.Generator, blocked: bool = False, layout: Layout = AHEAD) -> Scene:
    """Return a random scene.

    Args:
        rng: The random generator.
        blocked: Whether to put a bus straight ahead that hides most of the scene.
            Defaults to False.
        layout: Positions of the scene's parts. Defaults to `AHEAD`.
    """
    yaw = rng.uniform(-0.6, 0.6)
    road = (rng.uniform(-layout.offset, layout.offset), layout.middle)
    width = rng.uniform(7, 15)
    pavement = rng.uniform(2.5, 5)
    strips = [Strip(*road, yaw, layout.along, width / 2, pavement)]
    grounds = []
    if rng.random() < 0.6:
        side = rng.choice([-1, 1])
        right = side * (width / 2 + pavement + 6)
        position = _shifted(*road, yaw, right, rng.uniform(*layout.carpark))
        depth = rng.uniform(12, 30)
        grounds.append(Ground('carpark', _rectangle(*position, 12, depth, yaw)))
        strips.append(Strip(*position, yaw, (-depth / 2, depth / 2), 6))
    grounds.append(Ground('walkway', _rectangle(*road, width + 2 * pavement, 140, yaw)))
    if rng.random() < 0.5:
        position = _shifted(*road, yaw, 0, rng.uniform(*layout.side_road))
        side_yaw = yaw + np.pi / 2 + rng.uniform(-0.2, 0.2)
        side_width = rng.uniform(6, 11)
        grounds.append(Ground('drivable_area', _rectangle(*position, side_width, 140, side_yaw)))
        strips.append(Strip(*position, side_yaw, layout.along, side_width / 2))
    grounds.append(Ground('drivable_area', _rectangle(*road, width, 140, yaw)))
    if rng.random() < 0.7:
        position = _shifted(*road, yaw, 0, rng.uniform(*layout.crossing))
        corners = _rectangle(*position, width, rng.uniform(3, 5), yaw)
        grounds.append(Ground('ped_crossing', corners))
    boxes = _make_boxes(rng, strips, layout)
    if blocked:
        near = Box('bus', rng.uniform(-0.5, 0.5), 9.0, 0.0, 8.0, 5.0, 3.6)
        boxes = [box for box in boxes if box.z > 14] + [near]
    return Scene(tuple(grounds), tuple(boxes))


def _make_boxes(rng: np.random.Generator, strips: list[Strip], layout: Layout) -> list[Box]:
    """Return boxes that do not overlap: vehicles on the road, other objects also next to it."""
    names = [name for name in CLASSES if name in SIZES and name not in ABSENT]
    weights = np.array([FREQUENT.get(name, 0.07) for name in names])
    boxes: list[Box] = []
    for name in rng.choice(names, size=rng.integers(*layout.tries), p=weights / weights.sum()):
        size = np.array(SIZES[name]) * rng.uniform(0.9, 1.1)
        on_road = name not in ('pedestrian', 'bicycle', 'traffic_cone', 'barrier')
        strip = strips[0]
        if layout.around:
            # The last strip covers the whole scene, so that the road does not predict the objects.
            choices = [*strips, Strip(0.0, 0.0, 0.0, layout.along, layout.along[1])]
            strip = choices[rng.integers(len(choices))]
        reach = strip.reach if on_road else strip.reach + strip.margin
        right = rng.uniform(-reach, reach)
        x, z = _shifted(strip.x, strip.z, strip.yaw, right, rng.uniform(*strip.along))
        yaw = strip.yaw + rng.normal(0, 0.08) + np.pi * (right < 0)
        if not on_road:
            yaw = rng.uniform(-np.pi, np.pi)
        radius = np.hypot(size[0], size[1]) / 2
        clear = all(np.hypot(x - b.x, z - b.z) > radius + b.length / 2 for b in boxes)
        if layout.has_room(x, z, radius) and clear:
            shade = rng.uniform(0.75, 1.15)
            boxes.append(Box(str(name), x, z, yaw, size[0], size[1], size[2], shade))
    return boxes
