"""A tuned model trains to the same weights, is saved as by stock, and is restored afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, OPTIM_WRAPPERS, DefaultScope
from mmengine.runner import Runner
from mmengine.runner.checkpoint import load_checkpoint
from torch import nn

from mmtempo.benchmarks.saved_activations import SavedActivations
from mmtempo.hooks import ModelTuningHook
from mmtempo.workloads.bev.structures.bev_data_sample import BEVDataSample
from mmtempo.workloads.bev.structures.calibration import Calibration
from mmtempo.workloads.bev.structures.labels import pack_label
from tests.testing.common import ROOT
from tests.testing.toy import SPARSE, config, train, weights

LAST = torch.channels_last


@DATASETS.register_module()
class Pictures(torch.utils.data.Dataset):
    """A dataset of fixed random images."""

    def __init__(self) -> None:
        self.images = torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=self.images[index])


class Encoder(nn.Module):
    """A backbone of two stages that records the layout of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList([self.stage(3, 8), self.stage(8, 8)])
        self.seen: list[bool] = []

    @staticmethod
    def stage(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(
            # No bias: before a norm its gradient is noise, which AdamW scales to full steps.
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
            nn.Dropout(0.0),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.is_contiguous(memory_format=LAST))
        for stage in self.stages:
            x = stage(x)
        return x


@MODELS.register_module()
class PictureModel(BaseModel):
    """A small model with backbone, neck and head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone, self.neck = Encoder(), nn.Conv2d(8, 4, 1)
        self.decode_head = nn.Conv2d(4, 1, 1)

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        images = inputs if isinstance(inputs, torch.Tensor) else torch.stack(inputs)
        out = self.decode_head(self.neck(self.backbone(images)))
        return dict(loss=(out - 1).square().mean()) if mode == 'loss' else out


@HOOKS.register_module()
class Inspection(Hook):
    """Record properties of the model during the training."""

    priority = 'LOWEST'

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        model = runner.model
        self.found = dict(
            kinds=[type(stage).__name__ for stage in model.backbone.stages],
            last=is_last(model.backbone.stages[0][0].weight),
            matmul=torch.backends.cuda.matmul.allow_tf32,
            cudnn=torch.backends.cudnn.allow_tf32,
        )


def is_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=LAST) and not tensor.is_contiguous()


def pictures(work_dir: Path, iters: int = 4, tuning: dict | None = None, **options: Any) -> Config:
    cfg = config(work_dir, SPARSE, **options)
    cfg.model = dict(type='PictureModel')
    cfg.train_dataloader.dataset = dict(type='Pictures')
    cfg.train_cfg.max_iters = iters
    cfg.optim_wrapper = dict(
        type='SparseOptimWrapper', optimizer=dict(type='AdamW', lr=0.01, fused=True)
    )
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', interval=2)
    cfg.custom_hooks = [dict(type='Inspection')]
    if tuning is not None:
        cfg.custom_hooks.append(dict(type='ModelTuningHook', **tuning))
    return cfg


def found(runner: Runner) -> dict[str, Any]:
    return next(hook.found for hook in runner.hooks if isinstance(hook, Inspection))


def log_of(work_dir: Path) -> str:
    return '\n'.join(path.read_text() for path in sorted(work_dir.rglob('*.log')))


def assert_close(one: dict, other: dict, **close: float) -> None:
    assert list(one) == list(other)
    for name, value in one.items():
        assert value.shape == other[name].shape, name
        torch.testing.assert_close(value, other[name], **close)


def test_changes_nothing_by_default(tmp_path: Path) -> None:
    ours = train(pictures(tmp_path / 'a', tuning={}))
    stock = train(pictures(tmp_path / 'b'))
    assert found(ours) == found(stock)
    assert_close(weights(ours), weights(stock), rtol=0, atol=0)
    assert 'ModelTuningHook.' not in log_of(tmp_path / 'a')


def test_channels_last_with_ema_and_asynchronous_saves(tmp_path: Path) -> None:
    runners = []
    for name, tuning in (('ours', dict(channels_last=True)), ('plain', None)):
        cfg = pictures(tmp_path / name, tuning=tuning)
        cfg.custom_hooks.append(dict(type='EMAHook', momentum=0.3))
        runners.append(train(cfg))
    ours, plain = runners
    assert found(ours)['last']
    assert ours.model.backbone.seen == [True] * 4
    assert plain.model.backbone.seen == [False] * 4
    assert_close(weights(ours), weights(plain), rtol=1e-4, atol=1e-5)

    ema = next(hook for hook in ours.hooks if type(hook).__name__ == 'EMAHook').ema_model
    path = str(tmp_path / 'ours' / 'iter_4.pth')
    stock = PictureModel()
    loaded = load_checkpoint(stock, path, strict=True)
    # EMAHook saves the averages as the state dict of the model.
    assert_close(stock.state_dict(), ema.module.state_dict(), rtol=0, atol=0)
    saved = {
        key.removeprefix('module.'): value
        for key, value in loaded['ema_state_dict'].items()
        if key != 'steps'
    }
    assert_close(saved, weights(ours), rtol=0, atol=0)
    moments = [entry['exp_avg'] for entry in loaded['optimizer']['state'].values()]
    live = [entry['exp_avg'] for entry in ours.optim_wrapper.optimizer.state.values()]
    assert len(moments) == len(live) > 0
    for one, other in zip(moments, live):
        assert torch.equal(one, other)
        assert one.is_contiguous()
    assert any(is_last(moment) for moment in live)
    # After the run the inputs keep their layout.
    images = torch.randn(2, 3, 16, 16)
    ours.model.backbone.seen.clear()
    ours.model.eval()(images)
    assert ours.model.backbone.seen == [False]
    assert 'channels_last: 4 parameters of PictureModel, and the inputs of its backbone' in log_of(
        tmp_path / 'ours'
    )


@pytest.mark.parametrize('to_last', [True, False])
def test_resume_in_another_layout(tmp_path: Path, to_last: bool) -> None:
    tunings = [dict(channels_last=last) for last in (not to_last, to_last)]
    train(pictures(tmp_path / 'straight'))
    train(pictures(tmp_path / 'first', tuning=tunings[0]))
    cfg = pictures(tmp_path / 'second', iters=6, tuning=tunings[1])
    cfg.update(resume=True, load_from=str(tmp_path / 'first' / 'iter_4.pth'))
    resumed = train(cfg)
    assert found(resumed)['last'] == to_last
    for parameter, state in resumed.optim_wrapper.optimizer.state.items():
        assert state['exp_avg'].stride() == parameter.stride()
    logged = 'optimizer tensors got the layout of their parameters' in log_of(tmp_path / 'second')
    assert logged == to_last  # files have the contiguous layout
    # A run without the hook resumes from the same checkpoint.
    for name, start in (('plain', 'straight'), ('dropped', 'first')):
        cfg = pictures(tmp_path / name, iters=6)
        cfg.update(resume=True, load_from=str(tmp_path / start / 'iter_4.pth'))
        assert_close(weights(resumed), weights(train(cfg)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('names', ['auto', ['backbone.stages'], ['backbone.stages.0', 'neck']])
def test_activation_checkpointing_is_bit_exact(tmp_path: Path, names: Any) -> None:
    ours = train(pictures(tmp_path / 'ours', tuning=dict(activation_checkpointing=names)))
    plain = train(pictures(tmp_path / 'plain'))
    assert found(ours)['kinds'][0] == 'CheckpointedSequential'
    assert_close(weights(ours), weights(plain), rtol=0, atol=0)
    assert type(ours.model.backbone.stages[0]) is nn.Sequential
    loaded = load_checkpoint(PictureModel(), str(tmp_path / 'ours' / 'iter_4.pth'), strict=True)
    assert_close(loaded['state_dict'], weights(plain), rtol=0, atol=0)
    assert 'activation_checkpointing: 2 modules (' in log_of(tmp_path / 'ours')


@pytest.mark.parametrize('wrapper', ['SparseAmpOptimWrapper', 'OptimWrapper'])
def test_with_mixed_precision_accumulation_and_monitor(tmp_path: Path, wrapper: str) -> None:
    runners = []
    for name, tuning in (
        ('ours', dict(activation_checkpointing='auto', channels_last=True)),
        ('plain', dict(channels_last=True)),
    ):
        cfg = pictures(tmp_path / name, iters=8, tuning=tuning)
        cfg.optim_wrapper.update(type=wrapper, accumulative_counts=2)
        if wrapper == 'SparseAmpOptimWrapper':
            cfg.optim_wrapper.dtype = 'bfloat16'
        cfg.default_hooks.timer = dict(
            type='ThroughputMonitorHook', stage_profile=dict(begin=2, iterations=4)
        )
        runners.append(train(cfg))
    ours, plain = runners
    assert_close(weights(ours), weights(plain), rtol=0, atol=0)
    assert list((tmp_path / 'ours').rglob('tempo_summary.json'))


def test_tf32_is_set_and_restored(tmp_path: Path) -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert before == (False, True)
    for allow in (True, False):
        runner = train(pictures(tmp_path / str(allow), iters=2, tuning=dict(tf32=allow)))
        assert (found(runner)['matmul'], found(runner)['cudnn']) == (allow, allow)
        now = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        assert now == before
    assert torch.get_float32_matmul_precision() == 'highest'
    assert 'ModelTuningHook.tf32=True' in log_of(tmp_path / 'True')


def test_model_is_restored_after_a_failed_training(tmp_path: Path) -> None:
    runner = Runner.from_cfg(pictures(tmp_path, tuning=dict(activation_checkpointing='auto')))
    hook = next(hook for hook in runner.hooks if isinstance(hook, ModelTuningHook))
    runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
    hook.before_train(runner)
    hook.before_train(runner)
    assert type(runner.model.backbone.stages[0]).__name__ == 'CheckpointedSequential'
    hook.after_run(runner)
    hook.after_run(runner)
    assert type(runner.model.backbone.stages[0]) is nn.Sequential


@pytest.mark.parametrize('modules', ['auto', ['backbone.stages']])
def test_compiled_modules_train_to_the_same_weights(tmp_path: Path, modules: Any) -> None:
    compiled = dict(modules=modules, backend='eager')
    ours = train(pictures(tmp_path / 'ours', tuning=dict(compile=compiled)))
    plain = train(pictures(tmp_path / 'plain'))
    assert_close(weights(ours), weights(plain))
    expected = '1 Encoder, 1 Conv2d' if modules == 'auto' else '2 Sequential'
    assert expected in log_of(tmp_path / 'ours')


def test_trains_without_compilation_if_the_compiler_fails(tmp_path: Path) -> None:
    def broken(graph: Any, inputs: Any) -> Callable:
        raise OSError('no compiler found')

    runner = Runner.from_cfg(pictures(tmp_path))
    hook = ModelTuningHook(compile=dict(backend=broken))
    runner.register_hook(hook)
    runner.train()
    assert runner.iter == 4
    line = next(line for line in log_of(tmp_path).splitlines() if 'no compiler found' in line)
    assert 'WARNING' in line
    assert 'ModelTuningHook.compile: not compiled, ' in line


def test_logs_that_no_modules_were_found(tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE)
    cfg.train_cfg.max_iters = 2
    tuning = dict(type='ModelTuningHook', activation_checkpointing='auto', channels_last=True)
    cfg.custom_hooks = [dict(tuning, compile=dict(backend='eager'))]
    train(cfg)
    text = log_of(tmp_path)
    assert "activation_checkpointing: 'auto' found no modules; name them" in text
    assert 'channels_last: 0 parameters of ToyModel' in text


@pytest.mark.parametrize(
    ('tuning', 'error', 'says'),
    [
        (
            dict(activation_checkpointing=['backbone.stage']),
            ValueError,
            'custom_hooks: ModelTuningHook.activation_checkpointing: PictureModel has no module '
            "'backbone.stage'; did you mean backbone.stages",
        ),
        (
            dict(activation_checkpointing='backbone'),
            TypeError,
            "ModelTuningHook.activation_checkpointing: expected 'auto' or a list",
        ),
        (
            dict(compile=dict(modules=['bakbone'])),
            ValueError,
            "custom_hooks: ModelTuningHook.compile.modules: .* 'bakbone'; did you mean backbone",
        ),
    ],
)
def test_wrong_module_names_are_errors_before_any_change(
    tmp_path: Path, tuning: dict, error: type, says: str
) -> None:
    runner = Runner.from_cfg(pictures(tmp_path, tuning=dict(tuning, tf32=True)))
    with pytest.raises(error, match=says):
        runner.train()
    assert not torch.backends.cuda.matmul.allow_tf32
    assert runner.iter == 0


def test_wrong_compile_option_is_an_error() -> None:
    with pytest.raises(
        ValueError, match="custom_hooks: ModelTuningHook.compile: expected keys .* found 'modes'"
    ):
        ModelTuningHook(compile=dict(modes='default'))


def memory_of(cfg: Config, batch: dict, samples: int, wrapper: dict, tuning: dict) -> tuple:
    """Return loss, bytes of saved activations per sample, and gradients."""
    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg.model).train()
        optimizer = torch.optim.AdamW(model.parameters())
        optim_wrapper = OPTIM_WRAPPERS.build(dict(wrapper, optimizer=optimizer))
    # A newly built head predicts the prior for any input.
    torch.nn.init.normal_(model.decode_head.classify.weight, std=0.1)
    hook = ModelTuningHook(**tuning)
    runner = SimpleNamespace(
        model=model, optim_wrapper=optim_wrapper, logger=logging.getLogger(__name__)
    )
    hook.before_train(runner)
    torch.manual_seed(1)
    with SavedActivations(model) as saved, optim_wrapper.optim_context(model):
        data = model.data_preprocessor(batch, True)
        losses, _ = model.parse_losses(model(**data, mode='loss'))
    losses.backward()
    hook.after_run(runner)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return losses.item(), saved.bytes / samples, gradients


def bev_batch(count: int, size: tuple[int, int], cells: tuple[int, int]) -> dict:
    rng = np.random.default_rng(0)
    samples = []
    for _ in range(count):
        intrinsics = np.array([[1266.0, 0, 816], [0, 1266, 491], [0, 0, 1]])
        calibration = Calibration.native(intrinsics, (1600, 900)).resized(size[1], size[0])
        sample = BEVDataSample(metainfo=dict(calibration=calibration))
        label = pack_label(rng.random((14, *cells)) < 0.1, rng.random(cells) < 0.9)
        sample.gt_bev = torch.from_numpy(label.view(np.int16))
        samples.append(sample)
    images = rng.integers(0, 256, (count, 3, *size), dtype=np.uint8)
    return dict(inputs=list(torch.from_numpy(images)), data_samples=samples)


@pytest.mark.slow
def test_activation_memory_of_the_full_model() -> None:
    """At least 60 % less per sample than the baseline, with the same loss."""
    cfg = Config.fromfile(
        str(ROOT / 'configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py')
    )
    cfg.model.backbone.init_cfg = None
    batch = bev_batch(2, (600, 800), (196, 200))
    plain, half = dict(type='SparseOptimWrapper'), dict(type='SparseAmpOptimWrapper')
    half['dtype'] = 'bfloat16'
    arms = dict(
        baseline=(plain, {}),
        checkpointed=(plain, dict(activation_checkpointing='auto')),
        half=(half, {}),
        memory_first=(half, dict(activation_checkpointing='auto')),
    )
    losses, kept, gradients = {}, {}, {}
    for name, arm in arms.items():
        losses[name], kept[name], gradients[name] = memory_of(cfg, batch, 2, *arm)
        print(f'{name}: {kept[name] / 1e6:.1f} MB a sample, loss {losses[name]:.6f}')
    print(f'saved: {1 - kept["memory_first"] / kept["baseline"]:.1%}')
    assert kept['memory_first'] <= 0.4 * kept['baseline']
    # Checkpointing itself is bit-exact.
    assert losses['checkpointed'] == losses['baseline']
    assert losses['memory_first'] == losses['half']
    for one, other in (('checkpointed', 'baseline'), ('memory_first', 'half')):
        assert_close(gradients[one], gradients[other], rtol=1e-4, atol=1e-6)
    assert losses['memory_first'] == pytest.approx(losses['baseline'], rel=0.02)
