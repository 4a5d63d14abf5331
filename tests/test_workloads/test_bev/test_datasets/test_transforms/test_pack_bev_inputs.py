"""Packing keeps images and label bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmtempo.workloads.bev.datasets.transforms.bev_random_flip import BEVRandomFlip
from mmtempo.workloads.bev.datasets.transforms.pack_bev_inputs import PackBEVInputs
from tests.testing.bev_samples import bev_results, bev_rig_results


def test_label_keeps_its_bits() -> None:
    packed = PackBEVInputs()(BEVRandomFlip(prob=1.0)(bev_results()))
    assert packed['inputs'].dtype == torch.uint8
    assert packed['inputs'].is_contiguous()
    sample = packed['data_samples']
    expected = bev_results()['gt_bev'][:, ::-1]
    np.testing.assert_array_equal(sample.gt_bev.numpy().view(np.uint16), expected)
    assert sample.token == 't'
    assert sample.calibration.mirrored
    assert 'gt_bev' not in PackBEVInputs()(bev_results(label=False))['data_samples']


def test_cameras_are_stacked() -> None:
    packed = PackBEVInputs()(bev_rig_results())
    assert packed['inputs'].shape == (2, 3, 90, 160)
    np.testing.assert_array_equal(
        packed['inputs'][1].permute(1, 2, 0).numpy(), bev_rig_results()['img'][1]
    )
    assert len(packed['data_samples'].calibration) == 2
    uneven = bev_rig_results()
    uneven['img'][1] = uneven['img'][1][:50]
    with pytest.raises(ValueError, match='images of the cameras differ in shape'):
        PackBEVInputs()(uneven)
