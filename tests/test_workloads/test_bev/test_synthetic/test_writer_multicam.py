"""Six pictures of one scene, their label and `calib.json` agree, read as a user of the files would.

The expected pixels come from the written calibration alone: rays and projections go
through `cam2ego` and `intrinsics`, not through the generator's own cameras.
"""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmtempo.workloads.bev.structures.calibration import CAMERA_NAMES
from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT, PALETTE
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
    render_views,
    write_dataset,
)
from mmtempo.workloads.bev.synthetic import writer as writer_module
from mmtempo.workloads.bev.synthetic.rig import VEHICLES
from mmtempo.workloads.bev.synthetic.scene import AROUND
from mmtempo.workloads.bev.synthetic.writer import Job, make_sample
from tests.test_workloads.test_bev.test_synthetic.test_writer import CAMERA, bits, digest

SIZE = (640, 360)
# The bus's blue is nothing like that of grass, sky or any other ground.
BUS_BESIDE = Box('bus', 4.5, 1.0, 0.1, 2.9, 11.0, 3.4)


def ignored(label: np.ndarray) -> np.ndarray:
    return label >> IGNORE_BIT & 1 == 1


def cell(x: float, z: float) -> tuple[int, int]:
    return int((z + 50) / 0.5), int((x + 50) / 0.5)


def make_folders(root: Path, split: str) -> None:
    (root / 'ann_bev_dir' / split).mkdir(parents=True)
    for camera in CAMERA_NAMES:
        (root / 'img_dir' / split / camera).mkdir(parents=True)


def calibration(vehicle: int, size: tuple[int, int] = SIZE) -> dict[str, dict]:
    return {
        name: dict(intrinsics=view.camera.intrinsics, cam2ego=view.cam2ego)
        for name, view in make_rig(vehicle, size).items()
    }


def cell_pixels(entry: dict, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (200, 200, 2) of the cells' centres on the ground, and which are in the picture."""
    left_to_right = -50 + (np.arange(200) + 0.5) * 0.5
    x, z = np.meshgrid(left_to_right, left_to_right)
    ego = np.stack([z, -x, np.zeros_like(x), np.ones_like(x)], -1)
    camera = (ego @ np.linalg.inv(np.array(entry['cam2ego'])).T)[..., :3]
    depth = camera[..., 2:]
    uv = (camera / np.where(np.abs(depth) < 1e-6, 1e-6, depth)) @ np.array(entry['intrinsics']).T
    uv = uv[..., :2]
    inside = ((uv >= -0.5) & (uv <= np.array(size) - 0.5)).all(-1)
    return uv, inside & (depth[..., 0] > 0.2)


def pixel_rays(entry: dict, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Origin (3,) and directions (height, width, 3) of a picture's rays, in ego coordinates."""
    pixels = np.stack([*np.meshgrid(*map(np.arange, size)), np.ones(size[::-1])], -1)
    cam2ego = np.array(entry['cam2ego'])
    camera = pixels @ np.linalg.inv(np.array(entry['intrinsics'])).T
    return cam2ego[:3, 3], camera @ cam2ego[:3, :3].T


def hits(box: Box, origin: np.ndarray, rays: np.ndarray) -> np.ndarray:
    """Which rays meet a box ahead of the camera."""
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
    """Where masks differ, but for the pixels at the edge of the expected one or the picture."""
    edge = cv2.morphologyEx(expected.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((5, 5)))
    return ((found != expected) & (edge == 0))[2:-2, 2:-2]


def share(image: np.ndarray) -> np.ndarray:
    """Colour without brightness, which texture and light change."""
    return image / np.maximum(image.sum(-1, keepdims=True, dtype=float), 1)


def is_class(image: np.ndarray, name: str) -> np.ndarray:
    colour = np.array(PALETTE[CLASSES.index(name)][::-1], float)
    return np.abs(share(image) - colour / colour.sum()).max(-1) < 0.08


@pytest.mark.parametrize('index', range(3))
def test_label_and_pictures_agree_through_the_written_calibration(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Carparks on a chequered lawn: each valid cell shows its class in every camera that has it."""
    corners = np.array([[-3.0, -3], [3, -3], [3, 3], [-3, 3]])
    places = [(x, z) for x in range(-48, 49, 12) for z in range(-48, 49, 12)]
    chequers = [Ground('carpark', corners + place) for place in places]
    scene = Scene(tuple(chequers), ())
    monkeypatch.setattr(writer_module, 'make_scene', lambda rng, layout: scene)
    make_folders(tmp_path, 'val')
    token, calibrations = make_sample(Job(str(tmp_path), 'val', index, 0, SIZE, 'png', True))
    label = cv2.imread(str(tmp_path / f'ann_bev_dir/val/{token}.png'), cv2.IMREAD_UNCHANGED)

    carpark = bits(label, 'carpark').astype(np.uint8)
    window = np.ones((5, 5))
    # Not where class or validity changes nearby, nor where a cell is less than a pixel high.
    certain = (cv2.erode(carpark, window) == cv2.dilate(carpark, window)) & (
        cv2.dilate(ignored(label).astype(np.uint8), window) == 0
    )
    distance = np.hypot(*np.meshgrid(*[np.arange(200) - 99.5] * 2)) * 0.5
    visible = np.zeros((200, 200), bool)
    for camera in CAMERA_NAMES:
        image = cv2.imread(str(tmp_path / f'img_dir/val/{camera}/{token}.png'))
        uv, inside = cell_pixels(calibrations[camera], SIZE)
        visible |= inside
        chosen = inside & certain & (distance < 20)
        u, v = np.clip(np.round(uv[chosen]).astype(int), 0, np.array(SIZE) - 1).T
        shown = is_class(image[v, u], 'carpark')
        assert 0.03 < shown.mean() < 0.6, camera
        assert len(shown) > 100
        assert (shown == carpark[chosen]).all(), camera
    # Without boxes, what counts is just what is in a picture.
    assert (ignored(label) == ~visible).all()


@pytest.mark.parametrize('vehicle', range(VEHICLES))
def test_boxes_and_sky_are_where_the_rays_meet_them(vehicle: int) -> None:
    """Also for a bus beside the vehicle, which reaches behind several cameras."""
    rig = make_rig(vehicle, SIZE)
    crossing = 0
    for box in (BUS_BESIDE, Box('bus', -4.0, -3.0, 1.2, 2.0, 5.0, 1.1)):
        images = render_views(Scene((), (box,)), list(rig.values()), np.random.default_rng(0))
        for image, (name, entry) in zip(images, calibration(vehicle).items()):
            origin, rays = pixel_rays(entry, SIZE)
            expected = hits(box, origin, rays)
            assert not differs_inside(share(image)[..., 0] < 0.1, expected).any(), name
            # Only a box that is partly behind a camera fills the picture to a side.
            crossing += expected.mean() > 0.2
            sky = (rays[..., 2] > 0) & ~expected
            shown = (share(image)[..., 1] < 0.365) & (share(image)[..., 0] > 0.32)
            assert not differs_inside(shown, sky).any(), name
    assert crossing >= 2


def test_no_camera_is_level() -> None:
    """Whoever ignores pitch or roll is off by pixels, even in small pictures."""
    for vehicle in range(VEHICLES):
        for entry in calibration(vehicle, (352, 198)).values():
            cam2ego, intrinsics = entry['cam2ego'], entry['intrinsics']
            assert np.allclose(cam2ego[:3, :3] @ cam2ego[:3, :3].T, np.eye(3))
            assert np.linalg.det(cam2ego[:3, :3]) == pytest.approx(1)
            right, _, ahead = cam2ego[:3, :3].T
            degrees = np.degrees(np.arcsin(np.abs([right[2], ahead[2]])))
            assert (degrees > 0.4).all()
            assert (degrees < 1.6).all()
            assert 1.4 <= cam2ego[2, 3] <= 1.9
            assert intrinsics[1, 1] * abs(ahead[2]) > 1  # pixels, by pitch alone


def test_vehicles_differ_and_do_not_change() -> None:
    rigs = [calibration(vehicle) for vehicle in range(VEHICLES)]
    assert len({repr(rig) for rig in rigs}) == VEHICLES
    assert repr(rigs) == repr([calibration(vehicle) for vehicle in range(VEHICLES)])
    yaws = {'CAM_FRONT': 0, 'CAM_BACK_LEFT': 110, 'CAM_BACK': 180, 'CAM_FRONT_RIGHT': -55}
    for rig in rigs:
        assert tuple(rig) == CAMERA_NAMES
        for name, yaw in yaws.items():
            ahead = rig[name]['cam2ego'][:3, 2]
            angle = np.degrees(np.arctan2(ahead[1], ahead[0])) - yaw
            assert abs((angle + 180) % 360 - 180) < 5


def test_all_cameras_together_see_what_each_sees() -> None:
    """One scene, one label: a camera alone sees less of it, and nothing else."""
    views = make_rig(1, (352, 198)).values()
    scene = make_scene(np.random.default_rng(2), layout=AROUND)
    together = label_views(scene, list(views))
    alone = [label_views(scene, [view]) for view in views]
    assert (ignored(together) == np.logical_and.reduce([ignored(label) for label in alone])).all()
    for label in alone:
        valid = ~ignored(label)
        assert 0.02 < valid.mean() < (~ignored(together)).mean()
        assert (label[valid] == together[valid]).all()


def test_a_view_sees_what_its_camera_sees_in_a_turned_scene() -> None:
    scene = make_scene(np.random.default_rng(1), layout=AROUND)
    to_the_right = label_views(scene, [View(CAMERA, yaw=np.pi / 2)])
    ahead = make_label(scene.seen_from(0.0, 0.0, np.pi / 2), CAMERA, SURROUND_GRID)
    assert (~ignored(ahead)).mean() > 0.05
    assert len(np.unique(ahead)) > 4
    assert (to_the_right == np.rot90(ahead)).all()


def test_occlusion_in_label_and_picture_is_the_same() -> None:
    """Ground that counts shows its own colour, not that of a box before it."""
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
        assert (label[seen & ~ground] >> CLASSES.index('car')).all()  # a box's cells
        assert bare[ground].mean() > 0.99, name
        hidden = inside & ~seen
        assert hidden.sum() > 50
        assert bare[hidden].mean() < 0.1, name


def test_what_nobody_sees_is_ignored() -> None:
    rig = make_rig(0, SIZE)
    label = label_views(Scene((), ()), list(rig.values()))
    assert label.shape == (SURROUND_GRID.rows, SURROUND_GRID.columns) == (200, 200)
    assert ignored(label)[98:102, 98:102].all()
    assert ignored(label).mean() < 0.05
    for x, z in ((0, 30), (0, -30), (-30, 10), (30, 10), (-30, -20), (30, -20)):
        assert not ignored(label)[cell(x, z)]
    # Straight behind only the back camera looks; nothing ahead of it may count for it.
    without = [view for name, view in rig.items() if name != 'CAM_BACK']
    assert ignored(label_views(Scene((), ()), without))[cell(0, -30)]
    back = ignored(label_views(Scene((), ()), [rig['CAM_BACK']]))
    assert not back[cell(0, -30)]
    assert back[100:].all()


def test_hidden_boxes_are_ignored_and_seen_ones_count_as_a_whole() -> None:
    wall = Box('bus', -10.0, 0.0, 0.0, 2.0, 30.0, 3.4)
    car = Box('car', -20.0, 0.0, 0.3, 1.9, 4.6, 1.7)
    views = list(make_rig(0, SIZE).values())
    label = label_views(Scene((), (wall, car)), views)
    assert not bits(label, 'car').any()
    assert ignored(label)[cell(-20, 0)]
    assert bits(label, 'bus').sum() * 0.25 == pytest.approx(60, rel=0.1)
    label = label_views(Scene((), (car,)), views)
    assert bits(label, 'car').sum() * 0.25 == pytest.approx(1.9 * 4.6, rel=0.2)
    assert not ignored(label)[cell(-20, 0)]
    assert bits(label, 'car')[cell(-20, 0)]


def test_scenes_lie_all_around_and_leave_the_vehicle_room() -> None:
    boxes = []
    for seed in range(20):
        scene = make_scene(np.random.default_rng(seed), layout=AROUND)
        assert 15 < len(scene.boxes) < 60
        boxes += scene.boxes
    places = np.array([[box.x, box.z] for box in boxes])
    assert all(np.hypot(*box.corners.T).min() > 3 for box in boxes)
    quarters = np.histogram2d(*places.T, bins=([-50, 0, 50], [-50, 0, 50]))[0]
    assert quarters.min() > 0.15 * len(boxes)


def test_layout_and_calibration_on_disk(tmp_path: Path) -> None:
    """And samples depend on their job only: two processes write what one writes backwards."""
    root, again = tmp_path / 'bev', tmp_path / 'again'
    num, size = dict(train=6, val=1), (160, 90)
    tokens = list(write_dataset(str(root), num, size, 4, workers=2, multicam=True))
    assert tokens == [f'train_{i:06d}' for i in range(6)] + ['val_000000']
    calib = json.loads((root / 'calib.json').read_text())
    assert sorted(calib) == sorted(tokens)
    expected = {'calib.json'}
    for token in tokens:
        split = token.split('_')[0]
        expected |= {f'img_dir/{split}/{camera}/{token}.jpg' for camera in CAMERA_NAMES}
        expected.add(f'ann_bev_dir/{split}/{token}.png')
        assert tuple(calib[token]) == CAMERA_NAMES
        for entry in calib[token].values():
            assert np.shape(entry['cam2ego']) == (4, 4)
            assert np.shape(entry['intrinsics']) == (3, 3)
            assert 60 < entry['intrinsics'][0][2] < 100  # at the written width of 160
    assert set(digest(root)) == expected
    assert 1 < len({json.dumps(entry) for entry in calib.values()}) <= VEHICLES
    label = cv2.imread(str(root / 'ann_bev_dir/val/val_000000.png'), cv2.IMREAD_UNCHANGED)
    assert label.shape == (200, 200)
    assert label.dtype == np.uint16

    for split in num:
        make_folders(again, split)
    for token in tokens[::-1]:
        split, index = token.split('_')
        job = Job(str(again), split, int(index), 4, size, 'jpg', True)
        assert make_sample(job) == (token, calib[token])
    assert digest(again) == {
        path: content for path, content in digest(root).items() if path != 'calib.json'
    }


def test_never_half_a_data_set(tmp_path: Path) -> None:
    root = tmp_path / 'bev'
    writing = write_dataset(str(root), dict(train=6), (64, 36), multicam=True)
    next(writing)
    assert not root.exists()
    writing.close()  # as Ctrl-C does
    assert list(tmp_path.iterdir()) == []
