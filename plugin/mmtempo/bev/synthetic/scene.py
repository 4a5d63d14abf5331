"""A street scene as seen from above: flat ground areas and boxes standing on them.

Coordinates are the camera's: x right, z ahead, in metres; every shape is a
convex polygon of (x, z) corners.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..labels import CLASSES

# Width, length and height in metres of a typical object of each class.
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
OFTEN = {'car': 0.34, 'truck': 0.12, 'bus': 0.08, 'trailer': 0.06, 'pedestrian': 0.12}
# A rare class that a small data set lacks, as small real ones do.
ABSENT = ('construction_vehicle',)


@dataclass(frozen=True)
class Ground:
    """A flat area of one class; later areas of a scene lie over earlier ones."""

    name: str
    corners: np.ndarray


@dataclass(frozen=True)
class Box:
    """An upright box on the ground; `shade` varies its colour."""

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
        """Footprint (4, 2), in order around the box."""
        return _rectangle(self.x, self.z, self.width, self.length, self.yaw)


@dataclass(frozen=True)
class Scene:
    """Ground areas in drawing order, and boxes in any order."""

    grounds: tuple[Ground, ...]
    boxes: tuple[Box, ...]


def _rectangle(x: float, z: float, width: float, length: float, yaw: float) -> np.ndarray:
    """Corners of a rectangle whose length points along `yaw`, measured from straight ahead."""
    along = np.array([np.sin(yaw), np.cos(yaw)]) * length / 2
    across = np.array([np.cos(yaw), -np.sin(yaw)]) * width / 2
    centre = np.array([x, z])
    return centre + np.stack([-across - along, across - along, across + along, along - across])


def _shifted(x: float, z: float, yaw: float, right: float, ahead: float) -> tuple[float, float]:
    """A place given relative to a road: `right` of its axis, `ahead` along it."""
    return (
        x + right * np.cos(yaw) + ahead * np.sin(yaw),
        z - right * np.sin(yaw) + ahead * np.cos(yaw),
    )


def make_scene(rng: np.random.Generator, blocked: bool = False) -> Scene:
    """One random scene; `blocked` puts a bus right ahead that hides most of it."""
    yaw = rng.uniform(-0.6, 0.6)
    road = (rng.uniform(-7, 7), 25.0)
    width = rng.uniform(7, 15)
    pavement = rng.uniform(2.5, 5)
    grounds = []
    if rng.random() < 0.6:
        side = rng.choice([-1, 1])
        right = side * (width / 2 + pavement + 6)
        place = _shifted(*road, yaw, right, rng.uniform(-15, 15))
        grounds.append(Ground('carpark', _rectangle(*place, 12, rng.uniform(12, 30), yaw)))
    grounds.append(Ground('walkway', _rectangle(*road, width + 2 * pavement, 140, yaw)))
    if rng.random() < 0.5:
        place = _shifted(*road, yaw, 0, rng.uniform(-5, 20))
        crossing_yaw = yaw + np.pi / 2 + rng.uniform(-0.2, 0.2)
        grounds.append(
            Ground('drivable_area', _rectangle(*place, rng.uniform(6, 11), 140, crossing_yaw))
        )
    grounds.append(Ground('drivable_area', _rectangle(*road, width, 140, yaw)))
    if rng.random() < 0.7:
        place = _shifted(*road, yaw, 0, rng.uniform(-18, 10))
        grounds.append(Ground('ped_crossing', _rectangle(*place, width, rng.uniform(3, 5), yaw)))
    boxes = _make_boxes(rng, (*road, yaw), width, pavement)
    if blocked:
        near = Box('bus', rng.uniform(-0.5, 0.5), 9.0, 0.0, 8.0, 5.0, 3.6)
        boxes = [box for box in boxes if box.z > 14] + [near]
    return Scene(tuple(grounds), tuple(boxes))


def _make_boxes(
    rng: np.random.Generator, road: tuple[float, float, float], width: float, pavement: float
) -> list[Box]:
    """Objects where they belong: vehicles on the road, people beside it; none overlap."""
    names = [name for name in CLASSES if name in SIZES and name not in ABSENT]
    weights = np.array([OFTEN.get(name, 0.07) for name in names])
    boxes: list[Box] = []
    for name in rng.choice(names, size=rng.integers(5, 16), p=weights / weights.sum()):
        size = np.array(SIZES[name]) * rng.uniform(0.9, 1.1)
        on_road = name not in ('pedestrian', 'bicycle', 'traffic_cone', 'barrier')
        reach = width / 2 if on_road else width / 2 + pavement
        right = rng.uniform(-reach, reach)
        x, z = _shifted(*road, right, rng.uniform(-22, 24))
        yaw = road[2] + rng.normal(0, 0.08) + np.pi * (right < 0)
        if not on_road:
            yaw = rng.uniform(-np.pi, np.pi)
        # Nothing may reach behind the camera's near plane or stand inside something else.
        radius = np.hypot(size[0], size[1]) / 2
        clear = all(np.hypot(x - b.x, z - b.z) > radius + b.length / 2 for b in boxes)
        if z - radius > 2.0 and clear:
            shade = rng.uniform(0.75, 1.15)
            boxes.append(Box(str(name), x, z, yaw, size[0], size[1], size[2], shade))
    return boxes
