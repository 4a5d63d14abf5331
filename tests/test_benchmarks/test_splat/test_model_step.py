"""The training step that contains the splat."""

from __future__ import annotations

import torch

from mmtempo.benchmarks.splat import measure
from mmtempo.benchmarks.splat.model_step import TrainingStep
from mmtempo.doctor.sync_census import SyncCensus


def test_training_step_changes_the_model() -> None:
    training = TrainingStep(measure.QUICK_STEP[0], (64, 96), 1, 'auto')
    before = training.model.decode_head.classify.weight.clone()
    training()
    assert not torch.equal(before, training.model.decode_head.classify.weight)
    with SyncCensus() as counter:
        training.splat_only()()
    assert counter.waits == []
