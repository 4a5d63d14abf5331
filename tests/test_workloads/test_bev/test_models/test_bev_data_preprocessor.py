"""Batches are copied to the device in few copies, and normalized as by mmseg's preprocessor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmseg.models import SegDataPreProcessor
from mmseg.structures import SegDataSample

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.workloads.bev.models import bev_data_preprocessor
from mmtempo.workloads.bev.models.bev_data_preprocessor import BEVDataPreprocessor
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration
from mmtempo.workloads.bev.structures.labels import pack_label


def batch(count: int = 3, size: tuple[int, int] = (12, 16)) -> dict:
    torch.manual_seed(1)
    rng = np.random.default_rng(0)
    samples = []
    for i in range(count):
        calibration = Calibration.native(np.diag([100.0 + i, 90.0, 1.0]), (1600, 900))
        sample = BEVDataSample(metainfo=dict(calibration=calibration))
        label = pack_label(rng.random((14, 6, 7)) < 0.3, rng.random((6, 7)) < 0.3)
        sample.gt_bev = torch.from_numpy(label.view(np.int16))
        samples.append(sample)
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for _ in range(count)]
    return dict(inputs=images, data_samples=samples)


def test_images_are_normalized_as_by_mmseg() -> None:
    data = batch()
    ours = BEVDataPreprocessor()(data)['inputs']['imgs']
    stock = SegDataPreProcessor(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True, size=(12, 16)
    )
    seg = [SegDataSample(metainfo=dict(img_shape=(12, 16))) for _ in range(3)]
    expected = stock(dict(inputs=data['inputs'], data_samples=seg))['inputs']
    torch.testing.assert_close(ours, expected)


def test_stacked_and_listed_images_give_the_same_result() -> None:
    data = batch()
    listed = BEVDataPreprocessor()(data)['inputs']['imgs']
    stacked = BEVDataPreprocessor()(data | dict(inputs=torch.stack(data['inputs'])))
    assert torch.equal(listed, stacked['inputs']['imgs'])


def test_input_images_are_not_modified() -> None:
    data = batch()
    before = [image.clone() for image in data['inputs']]
    BEVDataPreprocessor(bgr_to_rgb=False)(data)
    assert all(map(torch.equal, data['inputs'], before))


@pytest.mark.parametrize('non_blocking', [True, False])
def test_images_and_labels_are_each_copied_once(
    monkeypatch: pytest.MonkeyPatch, non_blocking: bool
) -> None:
    copies = []

    def copy(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        copies.append((tuple(tensor.shape), tensor.dtype))
        return tensor.to(device)

    monkeypatch.setattr(bev_data_preprocessor, 'to_device', copy)
    BEVDataPreprocessor(non_blocking=non_blocking)(batch())
    pinned = [((3, 3, 12, 16), torch.uint8), ((3, 6, 7), torch.int16)]
    assert copies == (pinned if non_blocking else [])


def test_labels_are_unpacked_and_calibrations_are_passed_to_the_model() -> None:
    data = batch()
    preprocessor = BEVDataPreprocessor()
    assert 'geometry' not in preprocessor(data)['inputs']  # without a model
    preprocessor.prepare_geometry = lambda *arguments: arguments
    inputs = preprocessor(data)['inputs']
    assert inputs['occupancy'].shape == (3, 14, 6, 7)
    assert inputs['valid'].dtype == torch.bool
    pix2bev, size = inputs['geometry']
    assert size == (12, 16)
    assert pix2bev.shape == (3, 1, 4, 4)
    assert pix2bev[2, 0, 0, 0] == pytest.approx(1 / 102)


def test_legacy_size_scales_every_calibration() -> None:
    preprocessor = BEVDataPreprocessor(legacy_size=(800, 600))
    preprocessor.prepare_geometry = lambda *arguments: arguments
    pix2bev, _ = preprocessor(batch())['inputs']['geometry']
    assert pix2bev[0, 0, 0, 0] == pytest.approx(1 / 50)
    assert pix2bev[0, 0, 1, 1] == pytest.approx(1 / 60)


def test_legacy_size_refuses_several_cameras() -> None:
    data = batch()
    for sample in data['data_samples']:
        sample.set_metainfo(dict(calibration=[sample.calibration] * 2))
    preprocessor = BEVDataPreprocessor(legacy_size=(800, 600))
    preprocessor.prepare_geometry = lambda *arguments: arguments
    with pytest.raises(ValueError, match='legacy_size: expected one camera, .* found 2'):
        preprocessor(data)


def test_samples_may_have_several_cameras() -> None:
    data = batch()
    for sample in data['data_samples']:
        pose = np.eye(4)
        pose[:3, 3] = 1, 2, 3
        camera = sample.calibration
        moved = Calibration.native(camera.intrinsics, camera.size, pose)
        sample.set_metainfo(dict(calibration=[camera, moved]))
    data['inputs'] = [torch.stack([image, image.flip(0)]) for image in data['inputs']]
    preprocessor = BEVDataPreprocessor()
    preprocessor.prepare_geometry = lambda *arguments: arguments
    inputs = preprocessor(data)['inputs']
    assert inputs['imgs'].shape == (3, 2, 3, 12, 16)
    single = BEVDataPreprocessor()(batch())['inputs']['imgs']
    torch.testing.assert_close(inputs['imgs'][:, 0], single)
    pix2bev, size = inputs['geometry']
    assert size == (12, 16)
    assert pix2bev.shape == (3, 2, 4, 4)
    assert pix2bev[1, :, :3, 3].tolist() == [[0, 0, 0], [1, 2, 3]]


def test_labels_are_optional() -> None:
    data = batch()
    for sample in data['data_samples']:
        del sample.gt_bev
    assert 'occupancy' not in BEVDataPreprocessor()(data)['inputs']


def test_forward_has_no_synchronization() -> None:
    preprocessor, data = BEVDataPreprocessor(), batch()
    with SyncCensus() as counter:
        preprocessor(data, training=True)
    assert counter.waits == []


def test_images_of_different_shapes_are_an_error() -> None:
    data = batch()
    data['inputs'][1] = data['inputs'][1][:, :6]
    with pytest.raises(ValueError, match=r'differ in shape.*BEVResize'):
        BEVDataPreprocessor()(data)
