"""A street scene as seen from above: flat ground areas and boxes standing on them.

Coordinates are the viewer's (one camera's, or the vehicle's that carries several):
x right, z ahead, in metres; every shape is a convex polygon of (x, z) corners.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from mmtempo.workloads.bev.structures.labels import CLASSES

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

    def seen_from(self, x: float, z: float, yaw: float) -> Scene:
        """The same scene in the frame of a viewer at (x, z) who looks along `yaw`."""
        here = np.array([x, z])
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        grounds = [Ground(area.name, (area.corners - here) @ turn.T) for area in self.grounds]
        boxes = []
        for box in self.boxes:
            right, ahead = turn @ (np.array([box.x, box.z]) - here)
            boxes.append(replace(box, x=right, z=ahead, yaw=box.yaw - yaw))
        return Scene(tuple(grounds), tuple(boxes))


@dataclass(frozen=True)
class Layout:
    """How a scene lies about its viewer; ranges are in metres along the road's axis.

    Args:
        offset: How far to either side of the viewer the road's middle may lie.
        middle: How far ahead it lies.
        carpark: Where the carpark may lie.
        side_road: Where the crossing road may lie.
        crossing: Where the pedestrian crossing may lie.
        along: Where objects stand on the road.
        tries: Range of the number of objects to place; what finds no room is left out.
        around: Objects stand on every side of the viewer, and off the road too.
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
        """Whether the viewer leaves room for an object."""
        if self.around:
            return bool(np.hypot(x, z) - radius > 3.0)
        # Nothing may reach behind the camera's near plane.
        return bool(z - radius > 2.0)


AHEAD = Layout(7.0, 25.0, (-15, 15), (-5, 20), (-18, 10), (-22, 24), (5, 16))
AROUND = Layout(3.0, 0.0, (-30, 30), (-30, 30), (-25, 25), (-50, 50), (32, 55), around=True)


@dataclass(frozen=True)
class Strip:
    """Where objects may stand: along an axis through (x, z), up to `reach` beside it.

    People and things stand up to `beside` metres further out than vehicles.
    """

    x: float
    z: float
    yaw: float
    along: tuple[float, float]
    reach: float
    beside: float = 0.0


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


def make_scene(rng: np.random.Generator, blocked: bool = False, layout: Layout = AHEAD) -> Scene:
    """One random scene; `blocked` puts a bus right ahead that hides most of it."""
    yaw = rng.uniform(-0.6, 0.6)
    road = (rng.uniform(-layout.offset, layout.offset), layout.middle)
    width = rng.uniform(7, 15)
    pavement = rng.uniform(2.5, 5)
    strips = [Strip(*road, yaw, layout.along, width / 2, pavement)]
    grounds = []
    if rng.random() < 0.6:
        side = rng.choice([-1, 1])
        right = side * (width / 2 + pavement + 6)
        place = _shifted(*road, yaw, right, rng.uniform(*layout.carpark))
        depth = rng.uniform(12, 30)
        grounds.append(Ground('carpark', _rectangle(*place, 12, depth, yaw)))
        strips.append(Strip(*place, yaw, (-depth / 2, depth / 2), 6))
    grounds.append(Ground('walkway', _rectangle(*road, width + 2 * pavement, 140, yaw)))
    if rng.random() < 0.5:
        place = _shifted(*road, yaw, 0, rng.uniform(*layout.side_road))
        side_yaw = yaw + np.pi / 2 + rng.uniform(-0.2, 0.2)
        side_width = rng.uniform(6, 11)
        grounds.append(Ground('drivable_area', _rectangle(*place, side_width, 140, side_yaw)))
        strips.append(Strip(*place, side_yaw, layout.along, side_width / 2))
    grounds.append(Ground('drivable_area', _rectangle(*road, width, 140, yaw)))
    if rng.random() < 0.7:
        place = _shifted(*road, yaw, 0, rng.uniform(*layout.crossing))
        grounds.append(Ground('ped_crossing', _rectangle(*place, width, rng.uniform(3, 5), yaw)))
    boxes = _make_boxes(rng, strips, layout)
    if blocked:
        near = Box('bus', rng.uniform(-0.5, 0.5), 9.0, 0.0, 8.0, 5.0, 3.6)
        boxes = [box for box in boxes if box.z > 14] + [near]
    return Scene(tuple(grounds), tuple(boxes))


def _make_boxes(rng: np.random.Generator, strips: list[Strip], layout: Layout) -> list[Box]:
    """Objects where they belong: vehicles on the road, people beside it; none overlap."""
    names = [name for name in CLASSES if name in SIZES and name not in ABSENT]
    weights = np.array([OFTEN.get(name, 0.07) for name in names])
    boxes: list[Box] = []
    for name in rng.choice(names, size=rng.integers(*layout.tries), p=weights / weights.sum()):
        size = np.array(SIZES[name]) * rng.uniform(0.9, 1.1)
        on_road = name not in ('pedestrian', 'bicycle', 'traffic_cone', 'barrier')
        strip = strips[0]
        if layout.around:
            # The last one, the whole place, keeps the road from giving away where things are.
            choices = [*strips, Strip(0.0, 0.0, 0.0, layout.along, layout.along[1])]
            strip = choices[rng.integers(len(choices))]
        reach = strip.reach if on_road else strip.reach + strip.beside
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
