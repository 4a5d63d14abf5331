"""Models that receive stacked inputs by default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.model import (
    BaseDataPreprocessor,
    BaseModel,
    ImgDataPreprocessor,
    MMDistributedDataParallel,
)
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import Runner
from mmengine.structures import BaseDataElement
from mmseg.models import SegDataPreProcessor
from torch import nn

from mmtempo.loaders.build import stack_data_samples
from mmtempo.loaders.collate.stacked_inputs import takes_stacked_inputs
from mmtempo.models.sparse_seg_data_preprocessor import SparseSegDataPreProcessor
from mmtempo.workloads.bev.models.bev_data_preprocessor import BEVDataPreprocessor
from tests.testing.toy import STOCK, ToyDataset, config, with_evaluation


class Named(SparseSegDataPreProcessor):
    """A subclass that inherits the known `forward`."""


class Rewritten(SparseSegDataPreProcessor):
    """A subclass whose `forward` may expect a list."""

    def forward(self, data: dict, training: bool = False) -> dict:
        return super().forward(data, training)


@DATASETS.register_module()
class WithDataSamples(ToyDataset):
    def __getitem__(self, index: int) -> dict:
        return dict(inputs=self.points[index], data_samples=BaseDataElement(index=index))


@MODELS.register_module()
class StacksByItself(BaseModel):
    """A model for mmengine's collate function, with the default preprocessor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.net = nn.Linear(8, 1)

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        assert isinstance(inputs, list)
        out = self.net(torch.stack(inputs))
        return dict(loss=out.square().mean()) if mode == 'loss' else list(out)


@pytest.mark.parametrize(
    ('preprocessor', 'known'),
    [
        (BaseDataPreprocessor(), False),
        (ImgDataPreprocessor(), True),
        (SegDataPreProcessor(), True),
        (SparseSegDataPreProcessor(), True),
        (BEVDataPreprocessor(), True),
        (Named(), True),
        (Rewritten(), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_known_preprocessors_take_stacked_inputs(preprocessor: nn.Module, known: bool) -> None:
    model = StacksByItself()
    model.data_preprocessor = preprocessor
    assert takes_stacked_inputs(model) is known
    wrapper = MMDistributedDataParallel.__new__(MMDistributedDataParallel)
    nn.Module.__init__(wrapper)
    wrapper.module = model
    assert takes_stacked_inputs(wrapper) is known


@pytest.mark.parametrize('model', [None, nn.Linear(1, 1), dict(type='FCN')])
def test_model_without_preprocessor_takes_lists(model: Any) -> None:
    assert not takes_stacked_inputs(model)


def run_of(work: Path, **model: Any) -> Runner:
    cfg: Config = with_evaluation(config(work, STOCK))
    cfg.model = dict(type='StacksByItself', **model)
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=4, val_interval=2)
    cfg.val_cfg.type = 'PrefetchValLoop'
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.dataset.type = 'WithDataSamples'
    return Runner.from_cfg(cfg)


def test_model_with_unknown_preprocessor_receives_lists(tmp_path: Path) -> None:
    runner = run_of(tmp_path)
    runner.train()
    assert runner.iter == 4
    assert runner.train_dataloader.collate_fn is pseudo_collate
    assert runner.val_dataloader.collate_fn is pseudo_collate


def test_model_with_known_preprocessor_receives_tensors(tmp_path: Path) -> None:
    runner = run_of(tmp_path, data_preprocessor=dict(type='SparseSegDataPreProcessor'))
    loop = runner.build_train_loop(runner._train_loop)
    assert loop.dataloader.collate_fn is stack_data_samples
    loop.dataloader.close()


def test_samples_without_data_samples_are_not_stacked() -> None:
    assert isinstance(stack_data_samples([ToyDataset()[0]] * 2)['inputs'], list)
    batch = stack_data_samples([WithDataSamples()[0]] * 2)
    assert batch['inputs'].shape == (2, 8)
