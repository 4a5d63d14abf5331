"""Each transform on its own; that they agree on geometry is in test_calibration.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmtempo.workloads.bev.datasets.transforms.bev_random_crop import BEVRandomCrop
from mmtempo.workloads.bev.datasets.transforms.bev_random_flip import BEVRandomFlip
from mmtempo.workloads.bev.datasets.transforms.bev_resize import BEVResize
from mmtempo.workloads.bev.datasets.transforms.each_camera import EachCamera
from mmtempo.workloads.bev.datasets.transforms.load_bev_annotation import LoadBEVAnnotation
from mmtempo.workloads.bev.datasets.transforms.load_camera_image import LoadCameraImage
from mmtempo.workloads.bev.datasets.transforms.pack_bev_inputs import PackBEVInputs
from mmtempo.workloads.bev.structures.calibration import Calibration
from mmtempo.workloads.bev.structures.labels import CLASSES


def results(label: bool = True) -> dict:
    rng = np.random.default_rng(0)
    made = dict(
        img=rng.integers(0, 256, (90, 160, 3), np.uint8),
        calibration=Calibration.native(np.diag([100.0, 100, 1]), (160, 90)),
        token='t',
        img_path='t.jpg',
    )
    if label:
        made['gt_bev'] = rng.integers(0, 1 << 15, (6, 8), np.uint16)
    return made


def test_resize_leaves_the_label() -> None:
    before = results()
    after = BEVResize(scale=(80, 60))(results())
    assert after['img'].shape == (60, 80, 3)
    assert after['img_shape'] == (60, 80)
    assert after['calibration'].size == (80, 60)
    np.testing.assert_array_equal(after['gt_bev'], before['gt_bev'])


def test_crop_cuts_where_the_calibration_says() -> None:
    before = results()
    np.random.seed(0)
    places = set()
    for _ in range(20):
        after = BEVRandomCrop(size=(100, 50))(results())
        left, top = (-after['calibration'].intrinsics[:2, 2]).astype(int)
        np.testing.assert_array_equal(
            after['img'], before['img'][top : top + 50, left : left + 100]
        )
        places.add((left, top))
    assert len(places) > 5


def test_crop_larger_than_the_image_is_explained() -> None:
    with pytest.raises(ValueError, match=r'size = \(161, 10\) .* image of 160 x 90'):
        BEVRandomCrop(size=(161, 10))(results())
    with pytest.raises(ValueError, match='must be positive'):
        BEVRandomCrop(size=(0, 10))


def test_crop_at_a_given_place() -> None:
    for y, top in (((1.0, 1.0), 40), ((0.0, 0.0), 0), ((0.5, 0.5), 20)):
        after = BEVRandomCrop(size=(160, 50), y=y)(results())
        assert after['calibration'].intrinsics[1, 2] == -top
        np.testing.assert_array_equal(after['img'], results()['img'][top : top + 50])
    np.random.seed(0)
    crop = BEVRandomCrop(size=(100, 50), x=(0.5, 1.0))
    lefts = {int(-crop(results())['calibration'].intrinsics[0, 2]) for _ in range(200)}
    assert min(lefts) == 30
    assert max(lefts) == 60
    with pytest.raises(ValueError, match=r'BEVRandomCrop.y must be a range within \[0, 1\]'):
        BEVRandomCrop(size=(10, 10), y=(0.5, 1.5))


def rig_results() -> dict:
    """A sample of two cameras, the second one moved and turned."""
    pose = np.array([[0.0, 0, 1, 2], [0, 1, 0, -1.5], [-1, 0, 0, 1], [0, 0, 0, 1]])
    cameras = [results(label=False), results(label=False)]
    cameras[1]['img'] = cameras[1]['img'][::-1]
    cameras[1]['calibration'] = Calibration.native(np.diag([90.0, 90, 1]), (160, 90), pose)
    made = results()
    return made | {key: [camera[key] for camera in cameras] for key in ('img', 'calibration')}


def test_flip_mirrors_the_whole_rig() -> None:
    """A point and its mirror image are seen in the same pixel, before and after."""
    before, after = rig_results(), BEVRandomFlip(prob=1.0)(rig_results())
    np.testing.assert_array_equal(after['gt_bev'], before['gt_bev'][:, ::-1])
    points = np.array([[9.0, 0.4, 2.5], [8.0, -0.3, 1.0], [1.0, 1.0, 7.0]])
    for number in range(2):
        image = before['img'][number][:, ::-1]
        np.testing.assert_array_equal(after['img'][number], image)
        old, new = before['calibration'][number], after['calibration'][number]
        pixels = old.project(points)
        mirrored = new.project(points)  # the scene as it was recorded
        np.testing.assert_allclose(mirrored[:, 0], 159 - pixels[:, 0])
        np.testing.assert_allclose(mirrored[:, 1], pixels[:, 1])
        # In the mirrored frame itself, as the view transform sees it.
        local = (points * [-1, 1, 1] - new.cam2bev[:3, 3]) @ new.cam2bev[:3, :3]
        seen = local @ new.intrinsics.T
        np.testing.assert_allclose(seen[:, :2] / seen[:, 2:], mirrored)


def test_pack_stacks_the_cameras() -> None:
    packed = PackBEVInputs()(rig_results())
    assert packed['inputs'].shape == (2, 3, 90, 160)
    np.testing.assert_array_equal(
        packed['inputs'][1].permute(1, 2, 0).numpy(), rig_results()['img'][1]
    )
    assert len(packed['data_samples'].calibration) == 2
    uneven = rig_results()
    uneven['img'][1] = uneven['img'][1][:50]
    with pytest.raises(ValueError, match='images of the cameras differ in shape'):
        PackBEVInputs()(uneven)


def test_each_camera_draws_its_own_random_numbers() -> None:
    crop = EachCamera([dict(type='BEVRandomCrop', size=(100, 50))])
    image = {key: results()[key] for key in ('img', 'calibration')}
    crop.transforms.transforms.insert(0, lambda camera: camera | image)
    np.random.seed(0)
    sample = dict(
        token='t',
        img_path=['a.jpg', 'b.jpg'],
        intrinsics=[np.eye(3)] * 2,
        cam2bev=[np.eye(4)] * 2,
    )
    after = crop(sample)
    assert after['token'] == 't'
    assert after['img_path'] == ['a.jpg', 'b.jpg']
    assert [image.shape for image in after['img']] == [(50, 100, 3)] * 2
    first, second = (camera.intrinsics[:2, 2].tolist() for camera in after['calibration'])
    assert first != second


def test_several_cameras_where_one_belongs_and_the_reverse() -> None:
    for transform in (BEVRandomCrop(size=(10, 10)), BEVResize(scale=(10, 10))):
        with pytest.raises(ValueError, match="has 2 cameras; put it into dict.type='EachCamera'"):
            transform(rig_results())
    with pytest.raises(ValueError, match='LoadCameraImage: the sample has 2 cameras'):
        LoadCameraImage()(dict(img_path=['a.jpg', 'b.jpg']))
    with pytest.raises(ValueError, match='img_path is not a list, so the sample has one camera'):
        EachCamera([])(results())


def test_single_cameras_are_not_mirrored() -> None:
    flip = EachCamera([dict(type='BEVRandomFlip', prob=1.0)])
    image = {key: results()[key] for key in ('img', 'calibration')}
    flip.transforms.transforms.insert(0, lambda camera: camera | image)
    sample = dict(img_path=['a.jpg'], intrinsics=[np.eye(3)], cam2bev=[np.eye(4)])
    with pytest.raises(ValueError, match='put BEVRandomFlip behind EachCamera'):
        flip(sample)
    flip.transforms.transforms[:] = [lambda camera: None]
    assert flip(sample) is None


@pytest.mark.parametrize('groups', ['car', [], [[]], ['car'], [['car']] * 15])
def test_wrong_label_groups(groups: list) -> None:
    with pytest.raises(ValueError, match='must be 1 to 14 lists of class names'):
        LoadBEVAnnotation(groups=groups)


def test_label_groups(bev_root: str) -> None:
    path = dict(bev_path=f'{bev_root}/ann_bev_dir/train/train_000000.png')
    plain = LoadBEVAnnotation()(dict(path))['gt_bev']
    groups = [['car', 'truck', 'bus', 'trailer'], ['drivable_area']]
    merged = LoadBEVAnnotation(groups=groups)(dict(path))['gt_bev']
    vehicle = sum(plain >> CLASSES.index(name) & 1 for name in groups[0]) > 0
    assert vehicle.any()
    np.testing.assert_array_equal(merged & 1 == 1, vehicle)
    np.testing.assert_array_equal(merged >> 1 & 1, plain & 1)
    np.testing.assert_array_equal(merged & ~np.uint16(3), plain & np.uint16(1 << 14))
    with pytest.raises(ValueError, match=r"names \['lorry'\]; the classes of a label are"):
        LoadBEVAnnotation(groups=[['lorry']])


def test_flip_probability() -> None:
    np.random.seed(0)
    flips = [BEVRandomFlip(prob=0.3)(results())['flip'] for _ in range(300)]
    assert 60 < sum(flips) < 120
    assert not any(BEVRandomFlip(prob=0.0)(results())['flip'] for _ in range(20))
    with pytest.raises(ValueError, match=r'must lie in \[0, 1\], found 3'):
        BEVRandomFlip(prob=3)


def test_flip_works_without_a_label() -> None:
    assert BEVRandomFlip(prob=1.0)(results(label=False))['flip']


def test_pack_keeps_the_bits() -> None:
    packed = PackBEVInputs()(BEVRandomFlip(prob=1.0)(results()))
    assert packed['inputs'].dtype == torch.uint8
    assert packed['inputs'].is_contiguous()
    sample = packed['data_samples']
    expected = results()['gt_bev'][:, ::-1]
    np.testing.assert_array_equal(sample.gt_bev.numpy().view(np.uint16), expected)
    assert sample.token == 't'
    assert sample.calibration.mirrored
    assert 'gt_bev' not in PackBEVInputs()(results(label=False))['data_samples']
