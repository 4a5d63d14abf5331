"""Parse stages, and refuse wrong ones before the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mmengine.runner import Runner
from torch.utils.data import BatchSampler

from mmtempo.hooks.progressive_training_hook import ProgressiveTrainingHook
from mmtempo.progressive.stages import parse_stages
from tests.testing.progressive import (
    KEY,
    progressive,
    steps,
)
from tests.testing.toy import train


def test_learning_rate_rules(tmp_path: Path) -> None:
    stages = [
        dict(begin=0, batch_size=8),
        dict(begin=2, lr_scale='sqrt'),
        dict(begin=4, batch_size=1, lr_scale=2.0),
        dict(begin=6),
    ]
    train(progressive(tmp_path, stages, **{'train_cfg.max_iters': 8}))
    found = steps(tmp_path)
    expected = [2e-6] * 2 + [1e-6 * 2**0.5] * 2 + [2e-6] * 2 + [0.25e-6] * 2
    assert [one['lr'][0] for one in found] == expected
    assert [len(one['numbers']) for one in found] == [8] * 4 + [1] * 4


@pytest.mark.parametrize(
    ('stages', 'message'),
    [
        (dict(begin=0), r' must be a list of dicts'),
        ([5], r'\[0\] must be a dict'),
        ([dict(crop_size=4)], r'\[0\].begin must be .* found None'),
        ([dict(begin=-1)], r'\[0\].begin must be .* at least 0, found -1'),
        ([dict(begin=True)], r'\[0\].begin must be'),
        ([dict(begin=4), dict(begin=4)], r'\[1\].begin must be .* previous stage \(4\), found 4'),
        ([dict(begin=0, crop=4)], r'\[0\].crop is unknown; did you mean crop_size\?'),
        ([dict(begin=0, x=4)], r'\[0\].x is unknown; known keys: begin, batch_size, '),
        ([dict(begin=0, batch_size=0)], r'\[0\].batch_size must be'),
        ([dict(begin=0, batch_size=2.0)], r'\[0\].batch_size must be'),
        ([dict(begin=0, crop_size=(4, 0))], r'\[0\].crop_size must be'),
        ([dict(begin=0, crop_size=(4, 4, 4))], r'\[0\].crop_size must be'),
        ([dict(begin=0, scale='64')], r'\[0\].scale must be'),
        ([dict(begin=0, lr_scale=0)], r'\[0\].lr_scale must be'),
        ([dict(begin=0, lr_scale='cubic')], r'\[0\].lr_scale must be'),
        ([dict(begin=0, pipeline=['RandomCrop'])], r'\[0\].pipeline must be'),
        ([dict(begin=0, pipeline=dict(RandomCrop=4))], r'\[0\].pipeline must be'),
    ],
)
def test_wrong_stages_are_errors_that_name_the_key(stages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=KEY + message):
        ProgressiveTrainingHook(stages)


@pytest.mark.parametrize(
    ('stage', 'message'),
    [
        (
            dict(scale=(8, 8)),
            'scale needs one of Resize, RandomResize, RandomChoiceResize in .*, found Draw',
        ),
        (
            dict(pipeline=dict(RandomFlip=dict(prob=1.0))),
            'RandomFlip.prob needs one of RandomFlip in the pipeline',
        ),
        (dict(pipeline=dict(RandomCrop=dict(size=4))), "has no attribute 'size', found"),
        (
            dict(batch_size=41),
            'batch_size=41 with drop_last leaves no batch: each process has 40 samples',
        ),
    ],
)
def test_stage_that_cannot_begin_is_refused_before_the_training(
    stage: dict, message: str, tmp_path: Path
) -> None:
    stages = [dict(begin=0, batch_size=2), dict(begin=10, **stage)]
    cfg = progressive(tmp_path, stages, **{'train_dataloader.drop_last': True})
    with pytest.raises(ValueError, match=KEY + r'\[1\].*' + message):
        train(cfg)
    assert not (tmp_path / 'steps').exists()


def test_custom_batch_sampler_is_refused(tmp_path: Path) -> None:
    class OwnBatches(BatchSampler):
        pass

    cfg = progressive(tmp_path)
    runner = Runner.from_cfg(cfg)
    runner._train_dataloader.batch_sampler = dict(type=OwnBatches, drop_last=False)
    with pytest.raises(ValueError, match=KEY + r'\[0\].batch_size=8 needs .* found OwnBatches'):
        runner.train()


def test_stage_inherits_from_the_previous_one() -> None:
    first, second = parse_stages(
        [
            dict(begin=0, batch_size=8, crop_size=(16, 24), lr_scale=2, scale=64),
            dict(begin=3, scale=(32, 24)),
        ]
    )
    assert (second.begin, second.batch_size, second.pad_size) == (3, 8, (16, 24))
    assert second.targets['crop_size'] == first.targets['crop_size']
    assert [target.value for target in second.targets['scale']] == [(32, 24), (32, 24), [(32, 24)]]
    # Settings of the later stage are applied last, and `lr_scale` is not inherited.
    assert list(second.targets) == ['crop_size', 'scale']
    assert (first.lr_scale, second.lr_scale) == (2.0, 'linear')


@pytest.mark.parametrize(
    ('lr_scale', 'configured', 'factor'),
    [('linear', 4, 2.0), ('sqrt', 2, 2.0), (0.5, 4, 0.5), ('linear', None, 1.0)],
)
def test_learning_rate_factor(lr_scale: Any, configured: int | None, factor: float) -> None:
    (stage,) = parse_stages([dict(begin=0, batch_size=8, lr_scale=lr_scale)])
    assert stage.learning_rate(configured) == factor
