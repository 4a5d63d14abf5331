"""Images and labels of a scene agree, for one camera and for a rig.

Expected pixels of a rig are projected through `cam2ego` and `intrinsics` alone, as a user of
the files would do, not through the cameras of the generator.
"""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mmtempo.workloads.bev.structures.labels import CLASSES, PALETTE
from mmtempo.workloads.bev.synthetic import (
    SURROUND_GRID,
    Box,
    Ground,
    Scene,
    View,
    label_views,
    make_label,
    make_rig,
    make_scene,
    render_image,
    render_views,
)
from mmtempo.workloads.bev.synthetic.rig import VEHICLES
from mmtempo.workloads.bev.synthetic.scene import AROUND
from tests.testing.bev_scenes import (
    CAMERA,
    SIZE,
    bits,
    calibration,
    cell_pixels,
    chromaticity,
    front_cell,
    ignored,
    is_class,
    surround_cell,
)

# The blue of a bus differs from the colors of grass, sky and all ground areas.
ADJACENT_BUS = Box('bus', 4.5, 1.0, 0.1, 2.9, 11.0, 3.4)


def pixel_rays(entry: dict, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return origin (3,) and directions (height, width, 3) of all rays, in ego coordinates."""
    pixels = np.stack([*np.meshgrid(*map(np.arange, size)), np.ones(size[::-1])], -1)
    cam2ego = np.array(entry['cam2ego'])
    camera = pixels @ np.linalg.inv(np.array(entry['intrinsics'])).T
    return cam2ego[:3, 3], camera @ cam2ego[:3, :3].T


def hits(box: Box, origin: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """Return which rays meet a box ahead of the camera."""
    turn = np.array([[np.cos(box.yaw), -np.sin(box.yaw)], [np.sin(box.yaw), np.cos(box.yaw)]])
    start = np.append(turn @ (np.array([-origin[1], origin[0]]) - (box.x, box.z)), origin[2])
    flat = np.stack([-rays[..., 1], rays[..., 0]], -1) @ turn.T
    direction = np.concatenate([flat, rays[..., 2:]], -1)
    half = np.array([box.width / 2, box.length / 2])
    low, high = np.array([*-half, 0.0]), np.array([*half, box.height])
    with np.errstate(divide='ignore'):
        first, second = (low - start) / direction, (high - start) / direction
    enter, leave = np.minimum(first, second).max(-1), np.maximum(first, second).min(-1)
    return (enter < leave) & (leave > 0)


def differs_inside(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return where masks differ, except at the edges of the expected mask and of the image."""
    edge = cv2.morphologyEx(expected.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((5, 5)))
    return ((found != expected) & (edge == 0))[2:-2, 2:-2]


def test_ground_is_at_the_same_position_in_image_and_label() -> None:
    """The center of each visible cell has the color of its class."""
    rng = np.random.default_rng(3)
    square = np.array([[-4.0, 10], [5, 11], [6, 24], [-3, 22]])
    scene = Scene((Ground('carpark', square),), ())
    image, label = render_image(scene, CAMERA, rng), make_label(scene, CAMERA)
    color = np.array(PALETTE[CLASSES.index('carpark')][::-1], float)
    # Compare hues: texture and light change the brightness only.
    wrong = total = 0
    inside = cv2.erode(bits(label, 'carpark').astype(np.uint8), np.ones((5, 5)))
    outside = cv2.dilate(bits(label, 'carpark').astype(np.uint8), np.ones((5, 5)))
    for row in range(30, 90, 3):
        for column in range(70, 140, 3):
            if ignored(label[row, column]) or inside[row, column] != outside[row, column]:
                continue
            x, z = -25 + (column + 0.5) * 0.25, 1 + (row + 0.5) * 0.25
            u, v = CAMERA.project(np.array([[x, CAMERA.height, z]]))[0]
            pixel = image[round(v), round(u)].astype(float)
            is_carpark = abs(pixel[0] / pixel.sum() - color[0] / color.sum()) < 0.08
            total += 1
            wrong += is_carpark != bool(inside[row, column])
    assert total > 200
    assert wrong == 0


def test_box_carries_its_class_and_hides_the_ground_farther_away() -> None:
    box = Box('truck', 1.0, 12.0, 0.3, 2.5, 6.0, 2.9)
    label = make_label(Scene((), (box,)), CAMERA)
    row, column = front_cell(1.0, 12.0)
    assert bits(label, 'truck')[row, column]
    assert not ignored(label)[row, column]
    # Along the same ray: visible in front of the box, hidden farther away.
    assert not ignored(label)[front_cell(0.6, 7.0)]
    assert ignored(label)[front_cell(2.0, 24.0)]
    footprint = bits(label, 'truck').sum() * 0.25**2
    assert footprint == pytest.approx(2.5 * 6.0, rel=0.1)


def test_hidden_box_is_ignored() -> None:
    boxes = (
        Box('bus', 0.0, 9.0, 0.0, 8.0, 4.0, 3.6),
        Box('car', 0.0, 20.0, 0.0, 1.9, 4.6, 1.7),
    )
    label = make_label(Scene((), boxes), CAMERA)
    assert not bits(label, 'car').any()
    assert ignored(label)[front_cell(0.0, 20.0)]


def test_cells_outside_of_the_image_are_ignored() -> None:
    outside = ignored(make_label(Scene((), ()), CAMERA))
    assert outside[:, 0][: front_cell(0, 30)[0]].all()  # far left
    assert outside[0].all()  # below the image
    assert not outside[front_cell(0.0, 30.0)]
    left_edge = CAMERA.intrinsics[0, 2] / CAMERA.intrinsics[0, 0] * 30
    assert outside[front_cell(-left_edge - 0.5, 30.0)]
    assert not outside[front_cell(-left_edge + 0.5, 30.0)]


def test_crossing_adds_to_the_road_and_road_replaces_the_walkway() -> None:
    wide = np.array([[-9.0, 5], [9, 5], [9, 40], [-9, 40]])
    scene = Scene(
        (
            Ground('walkway', wide),
            Ground('drivable_area', wide * np.array([0.5, 1])),
            Ground('ped_crossing', wide * np.array([0.5, 0.5])),
        ),
        (),
    )
    label = make_label(scene, CAMERA)
    assert label[front_cell(0.0, 10.0)] == 0b11
    assert label[front_cell(0.0, 30.0)] == 0b01
    assert label[front_cell(7.0, 30.0)] == 0b100


@pytest.mark.parametrize('vehicle', range(VEHICLES))
def test_boxes_and_sky_are_where_rays_meet_them(vehicle: int) -> None:
    """This includes a bus next to the vehicle, of which a part is behind a camera."""
    rig = make_rig(vehicle, SIZE)
    crossing = 0
    for box in (ADJACENT_BUS, Box('bus', -4.0, -3.0, 1.2, 2.0, 5.0, 1.1)):
        images = render_views(Scene((), (box,)), list(rig.values()), np.random.default_rng(0))
        for image, (name, entry) in zip(images, calibration(vehicle).items()):
            origin, rays = pixel_rays(entry, SIZE)
            expected = hits(box, origin, rays)
            assert not differs_inside(chromaticity(image)[..., 0] < 0.1, expected).any(), name
            # Only a box that is partly behind a camera fills the image up to a side.
            crossing += expected.mean() > 0.2
            sky = (rays[..., 2] > 0) & ~expected
            colors = chromaticity(image)
            shown = (colors[..., 1] < 0.365) & (colors[..., 0] > 0.32)
            assert not differs_inside(shown, sky).any(), name
    assert crossing >= 2


def test_label_of_a_rig_is_the_union_of_its_cameras() -> None:
    """A single camera sees fewer cells, with the same classes."""
    views = make_rig(1, (352, 198)).values()
    scene = make_scene(np.random.default_rng(2), layout=AROUND)
    together = label_views(scene, list(views))
    alone = [label_views(scene, [view]) for view in views]
    assert (ignored(together) == np.logical_and.reduce([ignored(label) for label in alone])).all()
    for label in alone:
        valid = ~ignored(label)
        assert 0.02 < valid.mean() < (~ignored(together)).mean()
        assert (label[valid] == together[valid]).all()


def test_turned_view_equals_a_camera_in_a_turned_scene() -> None:
    scene = make_scene(np.random.default_rng(1), layout=AROUND)
    to_the_right = label_views(scene, [View(CAMERA, yaw=np.pi / 2)])
    ahead = make_label(scene.seen_from(0.0, 0.0, np.pi / 2), CAMERA, SURROUND_GRID)
    assert (~ignored(ahead)).mean() > 0.05
    assert len(np.unique(ahead)) > 4
    assert (to_the_right == np.rot90(ahead)).all()


def test_label_and_image_have_the_same_occlusions() -> None:
    """Valid ground shows its color in the image, and not that of a box in front of it."""
    rig = make_rig(2, SIZE)
    scene = make_scene(np.random.default_rng(4), layout=AROUND)
    carpet = Ground('ped_crossing', np.array([[-80.0, -80], [80, -80], [80, 80], [-80, 80]]))
    scene = Scene((carpet,), scene.boxes)
    images = render_views(scene, list(rig.values()), np.random.default_rng(0))
    for image, (name, entry), view in zip(images, calibration(2).items(), rig.values()):
        label = label_views(scene, [view])
        uv, inside = cell_pixels(entry, SIZE)
        u, v = np.clip(np.round(uv).astype(int), 0, np.array(SIZE) - 1).transpose(2, 0, 1)
        bare = is_class(image[v, u], 'ped_crossing')
        seen = ~ignored(label)
        ground = label == 1 << CLASSES.index('ped_crossing')
        assert ground.sum() > 1000
        assert (label[seen & ~ground] >> CLASSES.index('car')).all()  # the cells of boxes
        assert bare[ground].mean() > 0.99, name
        hidden = inside & ~seen
        assert hidden.sum() > 50
        assert bare[hidden].mean() < 0.1, name


def test_cells_that_no_camera_sees_are_ignored() -> None:
    rig = make_rig(0, SIZE)
    label = label_views(Scene((), ()), list(rig.values()))
    assert label.shape == (SURROUND_GRID.rows, SURROUND_GRID.columns) == (200, 200)
    assert ignored(label)[98:102, 98:102].all()
    assert ignored(label).mean() < 0.05
    for x, z in ((0, 30), (0, -30), (-30, 10), (30, 10), (-30, -20), (30, -20)):
        assert not ignored(label)[surround_cell(x, z)]
    # Only the back camera looks straight back, and no cell ahead may be valid for it.
    without = [view for name, view in rig.items() if name != 'CAM_BACK']
    assert ignored(label_views(Scene((), ()), without))[surround_cell(0, -30)]
    back = ignored(label_views(Scene((), ()), [rig['CAM_BACK']]))
    assert not back[surround_cell(0, -30)]
    assert back[100:].all()


def test_hidden_boxes_are_ignored_and_visible_boxes_are_labeled_as_a_whole() -> None:
    wall = Box('bus', -10.0, 0.0, 0.0, 2.0, 30.0, 3.4)
    car = Box('car', -20.0, 0.0, 0.3, 1.9, 4.6, 1.7)
    views = list(make_rig(0, SIZE).values())
    label = label_views(Scene((), (wall, car)), views)
    assert not bits(label, 'car').any()
    assert ignored(label)[surround_cell(-20, 0)]
    assert bits(label, 'bus').sum() * 0.25 == pytest.approx(60, rel=0.1)
    label = label_views(Scene((), (car,)), views)
    assert bits(label, 'car').sum() * 0.25 == pytest.approx(1.9 * 4.6, rel=0.2)
    assert not ignored(label)[surround_cell(-20, 0)]
    assert bits(label, 'car')[surround_cell(-20, 0)]
