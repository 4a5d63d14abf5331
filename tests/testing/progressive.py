"""A toy training in stages that records the input and the learning rates of each iteration."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, TRANSFORMS

from tests.testing.toy import SPARSE, config, train

KEY = r'custom_hooks.ProgressiveTrainingHook.stages'


@TRANSFORMS.register_module()
class DrawPicture(BaseTransform):
    """Draw an image whose parts all differ, and a label map."""

    def transform(self, results: dict) -> dict:
        pixels = np.arange(48 * 64 * 3).reshape(48, 64, 3) * 7 + results['number'] * 13
        results['img'] = (pixels % 251).astype(np.uint8)
        results['gt_seg_map'] = results['img'][..., 0] % 4
        results['seg_fields'] = ['gt_seg_map']
        results['img_shape'] = results['img'].shape[:2]
        return results


@DATASETS.register_module()
class GrowingPictures(BaseDataset):
    """A dataset of forty samples, whose images are 64 x 48."""

    def load_data_list(self) -> list[dict]:
        return [dict(number=number) for number in range(40)]


@MODELS.register_module()
class Looker(BaseModel):
    """A model that records the shapes of its inputs."""

    def __init__(self, data_preprocessor: dict) -> None:
        super().__init__(data_preprocessor)
        self.conv = torch.nn.Conv2d(3, 2, 3)
        self.shapes: list[tuple] = []

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        self.shapes.append(tuple(inputs.shape))
        labels = torch.stack([one.gt_sem_seg.data for one in data_samples])
        return dict(loss=self.conv(inputs).square().mean() + labels.float().mean())


@HOOKS.register_module()
class Steps(Hook):
    """Append the input and the learning rates of each iteration to a file."""

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        images = [image.numpy() for image in data_batch['inputs']]
        content = b''.join(image.tobytes() for image in images)
        entry = dict(
            iter=runner.iter,
            epoch=runner.epoch,
            shapes=sorted({image.shape for image in images}),
            numbers=[one.number for one in data_batch['data_samples']],
            content=hashlib.sha256(content).hexdigest()[:12],
            lr=[group['lr'] for group in runner.optim_wrapper.param_groups],
        )
        with open(f'{runner.work_dir}/steps', 'a') as file:
            file.write(json.dumps(entry) + '\n')


def steps(work: Path) -> list[dict]:
    """Return the entries of all iterations; assert that a repeated iteration equals the first."""
    found: dict[int, dict] = {}
    for line in (work / 'steps').read_text().splitlines():
        entry = json.loads(line)
        assert found.setdefault(entry['iter'], entry) == entry
    assert list(found) == list(range(len(found)))
    return list(found.values())


STAGES = [
    dict(begin=0, crop_size=(16, 24), batch_size=8),
    dict(begin=3, crop_size=[32, 48], batch_size=4),
]


def progressive(work: Path, stages: Any = STAGES, workers: int = 0, **options: Any) -> Config:
    """Return a config of 17 iterations, which are two epochs with the default stages."""
    cfg = config(work, SPARSE)
    cfg.default_scope = 'mmseg'
    cfg.model = dict(
        type='Looker', data_preprocessor=dict(type='SegDataPreProcessor', size=(40, 56))
    )
    cfg.train_dataloader.update(
        batch_size=4,
        num_workers=workers,
        dataset=dict(
            type='GrowingPictures',
            pipeline=[
                dict(type='DrawPicture'),
                dict(type='RandomCrop', crop_size=(40, 56)),
                dict(type='PackSegInputs', meta_keys=('number', 'img_shape')),
            ],
        ),
    )
    cfg.optim_wrapper.optimizer.lr = 1e-6
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=17, val_interval=100000)
    cfg.default_hooks.checkpoint = dict(type='AsyncCheckpointHook', by_epoch=False, interval=100)
    cfg.default_hooks.logger.interval = 1
    cfg.custom_hooks = [dict(type='Steps')]
    if stages is not None:
        cfg.custom_hooks.append(dict(type='ProgressiveTrainingHook', stages=stages))
    cfg.merge_from_dict(options)
    return cfg


def in_epochs(work: Path, stages: Any = STAGES, workers: int = 0, **options: Any) -> Config:
    cfg = progressive(work, stages, workers)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.train_cfg = dict(type='PrefetchEpochBasedTrainLoop', max_epochs=2)
    cfg.log_processor.by_epoch = True
    cfg.merge_from_dict(options)
    return cfg


CONFIGS = dict(iterations=progressive, epochs=in_epochs)


@HOOKS.register_module()
class TerminateAt(Hook):
    """Send SIGTERM to the process after an iteration, counted from 1."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter + 1 == self.iteration:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(cfg: Config, iteration: int) -> None:
    """Train until SIGTERM ends the run after an iteration."""
    cfg.custom_hooks.append(dict(type='TerminateAt', iteration=iteration))
    with pytest.raises(SystemExit):
        train(cfg)


def log_text(work: Path) -> str:
    (path,) = work.rglob('*.log')
    return path.read_text()
