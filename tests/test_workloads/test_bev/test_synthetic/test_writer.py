"""Pictures and labels agree, and the same arguments give the same files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmtempo.workloads.bev.structures.grid import LABEL_GRID
from mmtempo.workloads.bev.structures.labels import CLASSES, IGNORE_BIT, PALETTE
from mmtempo.workloads.bev.synthetic import (
    Box,
    Camera,
    Ground,
    Scene,
    make_label,
    make_scene,
    render_image,
)
from mmtempo.workloads.bev.synthetic.writer import write_dataset

INTRINSICS = np.array([[700.0, 0, 500], [0, 700.0, 260], [0, 0, 1]])
CAMERA = Camera(INTRINSICS, (1000, 560))


def bits(label: np.ndarray, name: str) -> np.ndarray:
    return (label >> CLASSES.index(name)) & 1 == 1


def cell(x: float, z: float) -> tuple[int, int]:
    return int((z - 1) / 0.25), int((x + 25) / 0.25)


def test_ground_in_picture_and_label_is_the_same_ground() -> None:
    """Each visible cell's centre shows its class's colour."""
    rng = np.random.default_rng(3)
    square = np.array([[-4.0, 10], [5, 11], [6, 24], [-3, 22]])
    scene = Scene((Ground('carpark', square),), ())
    image, label = render_image(scene, CAMERA, rng), make_label(scene, CAMERA)
    colour = np.array(PALETTE[CLASSES.index('carpark')][::-1], float)
    # Compare hues: texture and light change the brightness only.
    wrong = total = 0
    inside = cv2.erode(bits(label, 'carpark').astype(np.uint8), np.ones((5, 5)))
    outside = cv2.dilate(bits(label, 'carpark').astype(np.uint8), np.ones((5, 5)))
    for row in range(30, 90, 3):
        for column in range(70, 140, 3):
            if label[row, column] >> IGNORE_BIT & 1 or inside[row, column] != outside[row, column]:
                continue
            x, z = -25 + (column + 0.5) * 0.25, 1 + (row + 0.5) * 0.25
            u, v = CAMERA.project(np.array([[x, CAMERA.height, z]]))[0]
            pixel = image[round(v), round(u)].astype(float)
            is_carpark = abs(pixel[0] / pixel.sum() - colour[0] / colour.sum()) < 0.08
            total += 1
            wrong += is_carpark != bool(inside[row, column])
    assert total > 200
    assert wrong == 0


def test_box_hides_the_ground_behind_it_and_carries_its_class() -> None:
    box = Box('truck', 1.0, 12.0, 0.3, 2.5, 6.0, 2.9)
    label = make_label(Scene((), (box,)), CAMERA)
    row, column = cell(1.0, 12.0)
    assert bits(label, 'truck')[row, column]
    assert not label[row, column] >> IGNORE_BIT & 1
    # Along the same ray: seen before the box, hidden behind it.
    assert not label[cell(0.6, 7.0)] >> IGNORE_BIT & 1
    assert label[cell(2.0, 24.0)] >> IGNORE_BIT & 1
    footprint = bits(label, 'truck').sum() * 0.25**2
    assert footprint == pytest.approx(2.5 * 6.0, rel=0.1)


def test_hidden_box_is_ignored() -> None:
    boxes = (
        Box('bus', 0.0, 9.0, 0.0, 8.0, 4.0, 3.6),
        Box('car', 0.0, 20.0, 0.0, 1.9, 4.6, 1.7),
    )
    label = make_label(Scene((), boxes), CAMERA)
    assert not bits(label, 'car').any()
    assert label[cell(0.0, 20.0)] >> IGNORE_BIT & 1


def test_outside_of_the_picture_is_ignored() -> None:
    label = make_label(Scene((), ()), CAMERA)
    ignored = (label >> IGNORE_BIT & 1).astype(bool)
    assert ignored[:, 0][: cell(0, 30)[0]].all()  # far left
    assert ignored[0].all()  # below the picture
    assert not ignored[cell(0.0, 30.0)]
    left_edge = CAMERA.intrinsics[0, 2] / CAMERA.intrinsics[0, 0] * 30
    assert ignored[cell(-left_edge - 0.5, 30.0)]
    assert not ignored[cell(-left_edge + 0.5, 30.0)]


def test_crossing_lies_on_the_road_and_road_covers_the_pavement() -> None:
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
    assert label[cell(0.0, 10.0)] == 0b11
    assert label[cell(0.0, 30.0)] == 0b01
    assert label[cell(7.0, 30.0)] == 0b100


def test_scenes_differ_and_are_repeatable() -> None:
    first, again = (make_scene(np.random.default_rng(5)) for _ in range(2))
    assert repr(first) == repr(again)
    assert repr(first) != repr(make_scene(np.random.default_rng(6)))
    assert all(box.name != 'construction_vehicle' for box in first.boxes)


def test_scenes_for_one_camera_stay_what_they_are() -> None:
    """Data sets made before the generator knew of several cameras can be made again."""
    scene = make_scene(np.random.default_rng(5))
    places = [(box.name, round(box.x, 4), round(box.z, 4)) for box in scene.boxes]
    assert places == [
        ('bicycle', 6.2454, 11.8965),
        ('truck', -0.4561, 28.0638),
        ('pedestrian', 8.7471, 39.0974),
        ('car', 0.3924, 14.577),
        ('trailer', 6.0764, 18.8858),
        ('car', 8.8943, 30.9839),
    ]
    names = ['carpark', 'walkway', 'drivable_area', 'drivable_area', 'ped_crossing']
    assert [ground.name for ground in scene.grounds] == names


def digest(root: Path) -> dict:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob('*'))
        if path.is_file()
    }


def test_same_files_whatever_the_number_of_workers(tmp_path: Path) -> None:
    for workers in (1, 2):
        root = tmp_path / str(workers)
        tokens = list(
            write_dataset(str(root), dict(train=5, val=2), (160, 90), seed=4, workers=workers)
        )
        assert len(tokens) == 7
    assert digest(tmp_path / '1') == digest(tmp_path / '2')
    assert len(json.loads((tmp_path / '1/calib.json').read_text())) == 7


def test_never_half_a_data_set(tmp_path: Path) -> None:
    root = tmp_path / 'bev'
    writing = write_dataset(str(root), dict(train=6), (160, 90))
    next(writing)
    assert not root.exists()
    writing.close()  # as Ctrl-C does
    assert list(tmp_path.iterdir()) == []
    root.mkdir()
    with pytest.raises(FileExistsError, match='exists; remove it first'):
        next(write_dataset(str(root), dict(train=1), (160, 90)))


def test_labels_hold_what_the_metric_must_cope_with(tmp_path: Path) -> None:
    """Several intrinsics, absent classes, images that are nearly all ignored."""
    root = tmp_path / 'bev'
    list(write_dataset(str(root), dict(train=20), (160, 90), workers=2))
    labels = [
        cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
        for path in sorted((root / 'ann_bev_dir/train').iterdir())
    ]
    assert all(label.shape == (LABEL_GRID.rows, LABEL_GRID.columns) for label in labels)
    present = np.bitwise_or.reduce([np.bitwise_or.reduce(label, None) for label in labels])
    assert not present >> CLASSES.index('construction_vehicle') & 1
    assert present & 0b1111 == 0b1111
    ignored = [(label >> IGNORE_BIT & 1).mean() for label in labels]
    assert max(ignored) > 0.8
    assert min(ignored) < 0.7
    calibrations = json.loads((root / 'calib.json').read_text()).values()
    assert len({str(k) for k in calibrations}) >= 3
