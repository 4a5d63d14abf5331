"""Samples of six cameras are read, checked, and trained on."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, MODELS, DefaultScope
from mmengine.runner import Runner

from mmtempo.doctor.preflight import preflight
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.workloads.bev.datasets.multi_camera_bev_dataset import MultiCameraBEVDataset
from mmtempo.workloads.bev.structures.calibration import CAMERA_NAMES, EGO_TO_BEV
from tests.testing.common import MULTICAM, tiny_options

PIPELINE = [
    dict(type='EachCamera', transforms=[dict(type='LoadCameraImage')]),
    dict(type='LoadBEVAnnotation'),
    dict(type='PackBEVInputs'),
]


def build(root: object, **kwargs: Any) -> MultiCameraBEVDataset:
    return MultiCameraBEVDataset(data_root=str(root), pipeline=PIPELINE, **kwargs)


@pytest.fixture
def own_root(multicam_root: str, tmp_path: Path) -> Path:
    """Return a copy of the data set that a test may damage."""
    return Path(shutil.copytree(multicam_root, tmp_path / 'multicam'))


@pytest.fixture
def multicam_cfg(multicam_root: str, tmp_path: Path) -> Config:
    """Return the config of six cameras with a small head and the small data set."""
    cfg = Config.fromfile(str(MULTICAM))
    options = tiny_options(multicam_root, tmp_path / 'work', iters=2)
    del options['model.view_transform.grid']
    options['model.decode_head.num_blocks'] = (1,)
    cfg.merge_from_dict(options)
    return cfg


def test_reads_the_layout(multicam_root: str) -> None:
    dataset = build(multicam_root)
    assert len(dataset) == 5
    sample = dataset[2]
    assert sample['inputs'].shape == (6, 3, 108, 192)
    data = sample['data_samples']
    assert data.gt_bev.shape == (200, 200)
    assert [Path(path).parent.name for path in data.img_path] == list(CAMERA_NAMES)
    calib = json.loads(Path(multicam_root, 'calib.json').read_text())['train_000002']
    for name, camera in zip(CAMERA_NAMES, data.calibration):
        np.testing.assert_array_equal(camera.intrinsics, calib[name]['intrinsics'])
        # A point on the camera's axis, in the vehicle's axes and in those of the BEV frame.
        ahead, left, up, _ = np.array(calib[name]['cam2ego']) @ [0, 0, 10, 1]
        np.testing.assert_allclose(camera.cam2bev @ [0, 0, 10, 1], [-left, -up, ahead, 1])
    front, back = data.calibration[1], data.calibration[4]
    assert (front.cam2bev @ [0, 0, 10, 1])[2] > 10
    assert (back.cam2bev @ [0, 0, 10, 1])[2] < -8
    assert np.linalg.det(EGO_TO_BEV) == pytest.approx(1)


def test_cameras_are_stacked_in_the_given_order(multicam_root: str) -> None:
    sample = build(multicam_root, cameras=['CAM_BACK', 'CAM_FRONT'])[0]
    whole = build(multicam_root)[0]
    assert torch.equal(sample['inputs'], whole['inputs'][[4, 1]])


def test_one_error_lists_all_problems(own_root: Path) -> None:
    (own_root / 'img_dir/train/CAM_BACK/train_000001.jpg').unlink()
    (own_root / 'ann_bev_dir/train/train_000002.png').unlink()
    path = own_root / 'calib.json'
    calib = json.loads(path.read_text())
    del calib['train_000003']['CAM_FRONT']
    calib['train_000004']['CAM_BACK']['cam2ego'][0][0] += 1
    path.write_text(json.dumps(calib))
    with pytest.raises(ValueError, match='cannot be used') as caught:
        build(own_root)
    message = str(caught.value)
    assert '1 samples without an image of CAM_BACK: train_000001' in message
    assert '1 images without a label: train_000002' in message
    assert "train_000003, CAM_FRONT: expected {'intrinsics': 3x3, 'cam2ego': 4x4}" in message
    assert 'train_000004, CAM_BACK: a pose must be a rotation and a translation' in message


def test_missing_camera_folder_is_an_error(own_root: Path) -> None:
    shutil.rmtree(own_root / 'img_dir/train/CAM_FRONT')
    with pytest.raises(
        FileNotFoundError, match=r'CAM_FRONT does not exist; .* for each of cameras'
    ):
        build(own_root)
    assert len(build(own_root, cameras=['CAM_BACK'])) == 5
    for cameras in ([], 'CAM_BACK'):
        with pytest.raises(ValueError, match='cameras must be a list of camera folders, .*found'):
            build(own_root, cameras=cameras)


def test_classes_of_label_and_data_set_must_agree(multicam_root: str) -> None:
    """Otherwise the first bit, drivable area, would be trained as vehicle."""
    with pytest.raises(ValueError, match='labels of 14 classes, but metainfo.classes names 1: veh'):
        build(multicam_root, metainfo=dict(classes=('vehicle',)))


def test_calibrations_of_one_camera_are_refused(own_root: Path) -> None:
    tokens = json.loads((own_root / 'calib.json').read_text())
    (own_root / 'calib.json').write_text(json.dumps({t: np.eye(3).tolist() for t in tokens}))
    with pytest.raises(ValueError, match='CAM_FRONT_LEFT: expected'):
        build(own_root)


def test_skipped_samples_are_named_by_token(own_root: Path) -> None:
    (own_root / 'img_dir/train/CAM_BACK/train_000001.jpg').write_bytes(b'\xff\xd8')
    dataset = build(own_root, on_bad_sample='skip')
    assert dataset[1]['data_samples'].token == 'train_000002'
    assert dataset.bad_samples() == ['train_000001']


def test_training_resume_and_test_run(multicam_cfg: Config, tmp_path: Path) -> None:
    multicam_cfg.default_hooks.visualization.update(draw=True, out_dir=str(tmp_path / 'out'))
    runner = Runner.from_cfg(copy.deepcopy(multicam_cfg))
    runner.train()
    assert runner.model.view_transform.cache.misses > 0
    before = runner.model.state_dict()
    multicam_cfg.resume = True
    multicam_cfg.train_cfg.max_iters = 3
    multicam_cfg.experiment_name += '-resumed'
    runner = Runner.from_cfg(multicam_cfg)
    runner.load_or_resume()
    after = runner.model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    metrics = runner.test()
    assert 'IoU.vehicle' in metrics
    images = [cv2.imread(str(path)) for path in (tmp_path / 'out').iterdir()]
    assert len(images) == 2
    vehicle = multicam_cfg.val_dataloader.dataset.metainfo.palette[0]
    assert any((image == vehicle[::-1]).all(-1).any() for image in images)


@pytest.mark.parametrize(
    ('camera', 'axis', 'after_middle'),
    [('CAM_FRONT', 0, True), ('CAM_BACK', 0, False), ('CAM_FRONT_LEFT', 1, False)],
)
def test_points_of_a_camera_are_on_its_side_of_the_grid(
    multicam_cfg: Config, camera: str, axis: int, after_middle: bool
) -> None:
    """Rows of the grid are from back to front and columns from left to right, as in the label."""
    multicam_cfg.val_dataloader.dataset.cameras = [camera]
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(multicam_cfg.model)
        dataset = DATASETS.build(multicam_cfg.val_dataloader.dataset)
    data = model.data_preprocessor(pseudo_collate([dataset[0]]))
    geometry = data['inputs']['geometry']
    features = torch.randn(1, 64, *geometry.inside.shape[-2:])
    with torch.no_grad():
        occupied = model.view_transform(features, geometry)[0].abs().sum(0) > 0
    indices = occupied.nonzero()[:, axis]
    assert len(indices) > 300
    assert ((indices >= 100) == after_middle).float().mean() > 0.98


def test_preflight_refuses_column_splat_for_tilted_cameras(
    multicam_cfg: Config,
) -> None:
    preflight(multicam_cfg)
    multicam_cfg.model.view_transform.splat = 'column'
    with pytest.raises(ValueError, match="'column' is not exact here: .* use splat='auto'"):
        preflight(multicam_cfg)


def test_training_step_has_no_synchronization(multicam_cfg: Config) -> None:
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(multicam_cfg.model)
        dataset = DATASETS.build(multicam_cfg.train_dataloader.dataset)
    batch = pseudo_collate([dataset[0], dataset[1]])
    with SyncCensus() as counter:
        losses = model(**model.data_preprocessor(batch, True), mode='loss')
        sum(losses.values()).backward()
    assert counter.waits == []
