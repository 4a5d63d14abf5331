"""A sample carries label, prediction and meta information through copies and devices."""

from __future__ import annotations

import numpy as np
import torch

from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration


def test_moves_fields_and_keeps_meta_information() -> None:
    calibration = Calibration.native(np.eye(3), (160, 90))
    sample = BEVDataSample(metainfo=dict(token='t', calibration=calibration))
    sample.gt_bev = torch.zeros(6, 8, dtype=torch.int16)
    sample.pred_logits = torch.ones(14, 6, 8)
    moved = sample.to('meta')
    assert moved.gt_bev.device.type == moved.pred_logits.device.type == 'meta'
    assert moved.token == 't'
    assert moved.calibration.size == calibration.size
    assert sample.gt_bev.device.type == 'cpu'
    assert sorted(sample.keys()) == ['gt_bev', 'pred_logits']
    assert sorted(sample.metainfo_keys()) == ['calibration', 'token']
