"""Files of a data set agree with each other, and depend on its arguments only."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from mmtempo.workloads.bev.structures.calibration import CAMERA_NAMES
from mmtempo.workloads.bev.structures.grid import LABEL_GRID
from mmtempo.workloads.bev.structures.labels import CLASSES
from mmtempo.workloads.bev.synthetic import Ground, Scene
from mmtempo.workloads.bev.synthetic import writer as writer_module
from mmtempo.workloads.bev.synthetic.rig import VEHICLES
from mmtempo.workloads.bev.synthetic.writer import Job, make_sample, write_dataset
from tests.testing.bev_scenes import (
    SIZE,
    bits,
    cell_pixels,
    digest,
    ignored,
    is_class,
    read_label,
)


def make_folders(root: Path, split: str) -> None:
    (root / 'ann_bev_dir' / split).mkdir(parents=True)
    for camera in CAMERA_NAMES:
        (root / 'img_dir' / split / camera).mkdir(parents=True)


def test_files_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    for workers in (1, 2):
        root = tmp_path / str(workers)
        tokens = list(
            write_dataset(str(root), dict(train=5, val=2), (160, 90), seed=4, workers=workers)
        )
        assert len(tokens) == 7
    assert digest(tmp_path / '1') == digest(tmp_path / '2')
    assert len(json.loads((tmp_path / '1/calib.json').read_text())) == 7


def test_interrupted_write_leaves_no_files(tmp_path: Path) -> None:
    root = tmp_path / 'bev'
    writing = write_dataset(str(root), dict(train=6), (160, 90))
    next(writing)
    assert not root.exists()
    writing.close()  # as Ctrl-C does
    assert list(tmp_path.iterdir()) == []
    root.mkdir()
    with pytest.raises(FileExistsError, match='exists; remove it first'):
        next(write_dataset(str(root), dict(train=1), (160, 90)))


def test_interrupted_write_of_six_cameras_leaves_no_files(tmp_path: Path) -> None:
    root = tmp_path / 'bev'
    writing = write_dataset(str(root), dict(train=6), (64, 36), multicam=True)
    next(writing)
    assert not root.exists()
    writing.close()  # as Ctrl-C does
    assert list(tmp_path.iterdir()) == []


def test_labels_have_absent_classes_and_nearly_ignored_images(tmp_path: Path) -> None:
    """The metric must handle these, and several intrinsics."""
    root = tmp_path / 'bev'
    list(write_dataset(str(root), dict(train=20), (160, 90), workers=2))
    labels = [read_label(path) for path in sorted((root / 'ann_bev_dir/train').iterdir())]
    assert all(label.shape == (LABEL_GRID.rows, LABEL_GRID.columns) for label in labels)
    present = np.bitwise_or.reduce([np.bitwise_or.reduce(label, None) for label in labels])
    assert not present >> CLASSES.index('construction_vehicle') & 1
    assert present & 0b1111 == 0b1111
    shares = [ignored(label).mean() for label in labels]
    assert max(shares) > 0.8
    assert min(shares) < 0.7
    calibrations = json.loads((root / 'calib.json').read_text()).values()
    assert len({str(k) for k in calibrations}) >= 3


@pytest.mark.parametrize('index', range(3))
def test_label_and_images_agree_through_the_written_calibration(
    index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a checkerboard of carparks, each valid cell has its class in every camera that sees it.

    Expected pixels are projected through the written `cam2ego` and `intrinsics` only, not through
    the cameras of the generator.
    """
    corners = np.array([[-3.0, -3], [3, -3], [3, 3], [-3, 3]])
    positions = [(x, z) for x in range(-48, 49, 12) for z in range(-48, 49, 12)]
    carparks = [Ground('carpark', corners + position) for position in positions]
    scene = Scene(tuple(carparks), ())
    monkeypatch.setattr(writer_module, 'make_scene', lambda rng, layout: scene)
    make_folders(tmp_path, 'val')
    token, calibrations = make_sample(Job(str(tmp_path), 'val', index, 0, SIZE, 'png', True))
    label = read_label(tmp_path / f'ann_bev_dir/val/{token}.png')

    carpark = bits(label, 'carpark').astype(np.uint8)
    window = np.ones((5, 5))
    # Skip cells near a change of class or validity, and those less than a pixel high.
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
    # Without boxes, exactly the cells in an image are valid.
    assert (ignored(label) == ~visible).all()


def test_layout_and_calibration_on_disk(tmp_path: Path) -> None:
    """Samples depend on their job only, so neither the process nor the order matters."""
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
    label = read_label(root / 'ann_bev_dir/val/val_000000.png')
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
