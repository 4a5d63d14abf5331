"""A checkpointed module computes the same, keeps less memory, and stays the same module."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

from mmtempo.benchmarks.saved_activations import SavedActivations
from mmtempo.models.activation_checkpointing import checkpoint_module, find_units
from tests.testing.processes import SPAWN

SMALL_SWIN = dict(
    type='SwinTransformer', embed_dims=12, depths=(1, 2), num_heads=(1, 2), strides=(4, 2)
)
BACKBONES = {
    'Swin': (dict(SMALL_SWIN, out_indices=(1,)), {'SwinBlock': 3}),
    'ResNet': (
        dict(type='ResNetV1c', depth=18, base_channels=8, stem_channels=8),
        {'BasicBlock': 8},
    ),
    'ResNet-50': (
        dict(type='ResNet', depth=50, base_channels=8, stem_channels=8),
        {'Bottleneck': 16},
    ),
    'MiT': (
        dict(
            type='MixVisionTransformer',
            embed_dims=8,
            num_stages=2,
            num_layers=(1, 2),
            num_heads=(1, 2),
            patch_sizes=(7, 3),
            strides=(4, 2),
            sr_ratios=(2, 1),
            out_indices=(0, 1),
        ),
        {'TransformerEncoderLayer': 3},
    ),
    'UNet': (
        dict(type='UNet', base_channels=4),
        {'BasicConvBlock': 9, 'InterpConv': 4},
    ),
    'MobileNetV2': (dict(type='MobileNetV2', widen_factor=0.25), {'InvertedResidual': 17}),
    'HRNet': (
        dict(
            type='HRNet',
            extra=dict(
                stage1=dict(
                    num_modules=1,
                    num_branches=1,
                    block='BOTTLENECK',
                    num_blocks=(1,),
                    num_channels=(8,),
                ),
                **{
                    f'stage{n}': dict(
                        num_modules=1,
                        num_branches=n,
                        block='BASIC',
                        num_blocks=(4,) * n,
                        num_channels=(4, 8, 16, 32)[:n],
                    )
                    for n in (2, 3, 4)
                },
            ),
        ),
        {'Bottleneck': 1, 'BasicBlock': 36},
    ),
    # None of these has blocks that support `with_cp`.
    'STDC': (
        dict(
            type='STDCContextPathNet',
            backbone_cfg=dict(
                type='STDCNet',
                stdc_type='STDCNet1',
                in_channels=3,
                channels=(4, 8, 16, 32, 64),
                bottleneck_type='cat',
                num_convs=4,
                norm_cfg=dict(type='BN'),
                act_cfg=dict(type='ReLU'),
            ),
            last_in_channels=(64, 32),
            out_channels=16,
            ffm_cfg=dict(in_channels=32, out_channels=32, scale_factor=4),
        ),
        {'ConvModule': 2, 'Sequential': 3},
    ),
    'BiSeNetV2': (
        dict(type='BiSeNetV2'),
        {'DetailBranch': 1, 'SemanticBranch': 1, 'BGALayer': 1},
    ),
    'PIDNet': (dict(type='PIDNet', channels=8, ppm_channels=12), None),
    'DDRNet': (dict(type='DDRNet', channels=8, ppm_channels=12), None),
    'MSCAN': (
        dict(
            type='MSCAN',
            embed_dims=(8, 16, 16, 16),
            mlp_ratios=(2, 2, 2, 2),
            depths=(1, 1, 1, 1),
            norm_cfg=dict(type='BN'),
        ),
        None,
    ),
}


class Model(nn.Module):
    """A model with a child `backbone`, as mmseg's segmentors."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: torch.Tensor) -> Any:
        out = self.backbone(x)
        outs = out if isinstance(out, (tuple, list)) else [out]
        return sum(part.float().square().mean() for part in outs)


def build(name: str) -> Model:
    from mmengine.registry import DefaultScope

    torch.manual_seed(0)
    with DefaultScope.overwrite_default_scope('mmseg'):
        return Model(MODELS.build(copy.deepcopy(BACKBONES[name][0])))


def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Conv2d(8, 2, 1),
    )


def step(model: nn.Module, x: torch.Tensor) -> tuple[float, int]:
    """Return loss and bytes kept; leave gradients in the model."""
    torch.manual_seed(7)
    with SavedActivations(model) as saved:
        out = model(x)
        loss = out if out.dim() == 0 else out.square().mean()
    loss.backward()
    return loss.item(), saved.bytes


def assert_same_state(one: nn.Module, other: nn.Module, **close: float) -> None:
    for (name, first), (_, second) in zip(one.named_parameters(), other.named_parameters()):
        assert (first.grad is None) == (second.grad is None), name
        if first.grad is not None:
            torch.testing.assert_close(first.grad, second.grad, msg=name, **close)
    for (name, first), (_, second) in zip(one.named_buffers(), other.named_buffers()):
        assert torch.equal(first, second), name


@pytest.mark.parametrize('name', BACKBONES)
def test_units_found_compute_the_same_and_keep_less(name: str) -> None:
    model, plain = build(name), build(name)
    x = torch.randn(2, 3, 64, 64)
    loss, bytes_kept = step(plain, x)
    units = find_units(model)
    kinds = [type(unit).__name__ for unit in units.values()]
    expected = BACKBONES[name][1]
    if expected is not None:
        assert {kind: kinds.count(kind) for kind in kinds} == expected
    for path, unit in units.items():
        assert model.get_submodule(path) is unit
        checkpoint_module(unit)
    assert list(model.state_dict()) == list(plain.state_dict())
    ours, ours_kept = step(model, x)
    print(f'{name}: {len(units)} units, {bytes_kept} -> {ours_kept} bytes')
    assert ours == loss
    assert ours_kept < 0.75 * bytes_kept  # HRNet's exchange between branches is not checkpointed
    # With the running statistics of batch norms, which are updated once.
    assert_same_state(model, plain, rtol=0, atol=0)


def test_second_backward_pass_through_one_graph_is_equal() -> None:
    model, plain, x = block(), block(), torch.randn(4, 3, 8, 8)
    checkpoint_module(model)
    for one in (model, plain):
        torch.manual_seed(1)
        loss = one(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()
    assert_same_state(model, plain, rtol=0, atol=0)
    assert model[1].num_batches_tracked == 1
    assert model[1].momentum == 0.1


@pytest.mark.parametrize('momentum', [0.1, None])
def test_running_statistics_are_updated_once(momentum: float | None) -> None:
    model, plain = block(), block()
    for one in (model, plain):
        one[1].momentum = momentum
    checkpoint_module(model)
    for i in range(3):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(i))
        step(model, x)
        step(plain, x)
    assert_same_state(model, plain, rtol=0, atol=0)
    assert model[1].momentum == momentum
    model.eval()
    plain.eval()
    x = torch.randn(4, 3, 8, 8)
    assert step(model, x)[0] == step(plain, x)[0]


def test_nested_checkpoints_compute_the_same() -> None:
    model, plain = nn.Sequential(block()), nn.Sequential(block())
    checkpoint_module(model[0])
    checkpoint_module(model)
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    assert step(model, x)[0] == step(plain, x)[0]
    assert_same_state(model, plain, rtol=0, atol=0)


def test_autocast_computes_the_same() -> None:
    model, plain, x = block(), block(), torch.randn(4, 3, 8, 8)
    checkpoint_module(model)
    losses = []
    for one in (model, plain):
        torch.manual_seed(1)
        with torch.autocast('cpu', torch.bfloat16):
            loss = one(x).float().square().mean()
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    assert_same_state(model, plain, rtol=0, atol=0)


def test_module_keeps_identity_parameters_and_hooks() -> None:
    model = block()
    called = []
    model.register_forward_hook(lambda *_: called.append(1))
    parameters, keys, own = list(model.parameters()), list(model.state_dict()), type(model)
    undo = checkpoint_module(model)
    assert isinstance(model, own)
    assert len(model) == 5
    assert all(a is b for a, b in zip(model.parameters(), parameters))
    assert list(model.state_dict()) == keys
    assert type(model).__name__ == 'CheckpointedSequential'
    step(model, torch.randn(4, 3, 8, 8))
    assert called == [1]  # not during the recomputation
    with pytest.raises(ValueError, match='is checkpointed already'):
        checkpoint_module(model)
    undo()
    assert type(model) is own


def test_copies_have_the_original_class() -> None:
    model = block()
    own = type(model)
    checkpoint_module(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is own
        assert list(other.state_dict()) == list(model.state_dict())
        other.eval()
    assert type(model) is not own


def test_nothing_is_kept_without_gradients() -> None:
    model = block()
    checkpoint_module(model)
    with torch.no_grad(), SavedActivations(model) as saved:
        out = model(torch.randn(4, 3, 8, 8))
    assert saved.bytes == 0
    assert not out.requires_grad


def test_with_cp_is_disabled_and_restored() -> None:
    model, plain, x = build('ResNet'), build('ResNet'), torch.randn(2, 3, 32, 32)
    unit = model.backbone.layer1[0]
    unit.with_cp = True
    undo = checkpoint_module(unit)
    assert unit.with_cp is False
    assert step(model, x)[0] == step(plain, x)[0]
    assert_same_state(model, plain, rtol=0, atol=0)
    undo()
    assert unit.with_cp is True


def test_replaced_forward_is_refused() -> None:
    model = block()
    model.forward = model.forward
    with pytest.raises(ValueError, match='activation_checkpointing'):
        checkpoint_module(model)


def test_model_without_backbone_has_no_units() -> None:
    assert find_units(block()) == {}


class Used(nn.Module):
    """A model with a module that its forward pass does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.last = block(), nn.Conv2d(2, 2, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(x))


def gradients_under_ddp(rank: int, checkpoints: bool) -> list:
    model = Used()
    wrapped = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    if checkpoints:
        checkpoint_module(model.block)
    for i in range(2):
        torch.manual_seed(10 * i + rank)
        wrapped(torch.randn(4, 3, 8, 8)).square().mean().backward()
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def under_ddp(pipe: Any, rank: int, folder: str) -> None:
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{folder}/group', rank=rank, world_size=2
    )
    found = [gradients_under_ddp(rank, checkpoints) for checkpoints in (True, False)]
    pipe.send([[part is not None and part.numpy() for part in one] for one in found])
    torch.distributed.barrier()
    os._exit(0)  # threads of the group sometimes never end


@pytest.mark.timeout(180)
def test_ddp_with_unused_parameters_has_equal_gradients(tmp_path: Path) -> None:
    pipes = [SPAWN.Pipe() for _ in range(2)]
    processes = [
        SPAWN.Process(target=under_ddp, args=(there, rank, str(tmp_path)))
        for rank, (_, there) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    for here, _ in pipes:
        assert here.poll(150)
        ours, plain = here.recv()
        assert len(ours) == 10
        for one, other in zip(ours, plain):
            np.testing.assert_array_equal(one, other)
    for process in processes:
        process.join()
        assert process.exitcode == 0
