"""Channels last changes the layout in memory, and no value."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mmtempo.models.channels_last import match_state, take_channels_last

LAST = torch.channels_last


class Model(nn.Module):
    """2D and 3D convolutions, and a parameter that is viewed."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2))
        self.volume = nn.Conv3d(1, 2, 3, padding=1)
        self.table = nn.Parameter(torch.randn(1, 4, 7, 7))
        self.seen: list = []
        self.backbone.register_forward_pre_hook(lambda _, args: self.seen.append(args[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.backbone(x) + self.table.view(1, -1).view(1, 4, 7, 7)
        return self.volume(features.unsqueeze(1)).square().mean()


def is_last(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=LAST) and not tensor.is_contiguous()


def test_convolutions_and_their_input_are_converted() -> None:
    plain, model, x = Model(), Model(), torch.randn(2, 3, 8, 8)
    parameters = list(model.parameters())
    count, undo = take_channels_last(model, model.backbone)
    assert count == 2
    assert all(a is b for a, b in zip(model.parameters(), parameters))
    weight = model.backbone[0].weight
    assert is_last(weight)
    assert not is_last(model.table)
    for name, value in model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name]), name
    losses = [one(x) for one in (model, plain)]
    torch.testing.assert_close(*losses)
    losses[0].backward()
    losses[1].backward()
    assert is_last(weight.grad)
    torch.testing.assert_close(weight.grad, plain.backbone[0].weight.grad)
    undo()
    model.seen.clear()
    model(x)
    assert model.seen[0] is x


def test_keyword_input_is_converted() -> None:
    module, seen = nn.Conv2d(3, 8, 3), []
    take_channels_last(module, module)
    module.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    module(input=torch.randn(2, 3, 8, 8))
    assert is_last(seen[0]['input'])


def test_only_four_dimensional_inputs_are_converted() -> None:
    module, seen = nn.Identity(), []
    take_channels_last(module, module)
    module.register_forward_pre_hook(lambda _, args: seen.extend(args))
    points = torch.randn(5, 8)
    module(points)
    assert seen[0] is points


@pytest.mark.parametrize('fused', [True, False])
@pytest.mark.parametrize('first', [True, False])
def test_optimizer_state_gets_the_layout_of_its_parameter(first: bool, fused: bool) -> None:
    """Convert the parameter (`first`) or its state between two steps."""
    found = []
    for changes in (True, False):
        torch.manual_seed(0)
        parameter = nn.Parameter(torch.randn(4, 3, 2, 2))
        optimizer = torch.optim.AdamW([parameter], lr=0.1, fused=fused)
        for i in range(4):
            if i == 2 and changes:
                state = optimizer.state[parameter]
                if first:
                    parameter.data = parameter.data.contiguous(memory_format=LAST)
                    parameter.grad = None
                else:
                    for key in ('exp_avg', 'exp_avg_sq'):
                        state[key] = state[key].contiguous(memory_format=LAST)
                kept = copy.deepcopy(state)
                assert match_state(optimizer) == 2
                assert match_state(optimizer) == 0
                for key, value in kept.items():
                    assert torch.equal(optimizer.state[parameter][key], value), key
                assert state['exp_avg'].stride() == parameter.stride()
            parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(torch.randn(4, 3, 2, 2))
            optimizer.step()
        found.append(parameter.detach())
    torch.testing.assert_close(*found, rtol=0, atol=0)
