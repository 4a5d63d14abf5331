"""Forward profiles of models with compiled modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.testing.compiled_models import compiling
from tests.testing.profiled_models import profile_of, train


class Ticking:
    """Clock that advances by one millisecond on each read."""

    now = 0

    def __call__(self) -> int:
        self.now += 1_000_000
        return self.now


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.line(x).relu()


class Plain(nn.Module):
    """Model with modules that can be compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone: Any = Layer()
        self.head: Any = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


@pytest.fixture
def graphs() -> Iterator[list]:
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


@pytest.mark.parametrize('early', [True, False])
@pytest.mark.parametrize('how', ['wrapped', 'its forward', 'in place', 'the model'])
def test_compiled_modules(how: str, early: bool, graphs: list) -> None:
    """No error, no recompilation, and no clock in a graph."""
    model, options = Plain(), dict(backend=compiling(graphs), fullgraph=True)
    if how == 'wrapped':
        model.backbone = torch.compile(model.backbone, **options)
    elif how == 'its forward':
        model.backbone.forward = torch.compile(model.backbone.forward, **options)
    elif how == 'in place':
        model.backbone.compile(**options)
    else:
        model.forward = torch.compile(model.forward, **options)
    if not early:
        model(torch.ones(1)).backward()
    clock = Ticking()
    profile = profile_of(model, ['backbone', 'head'], clock)
    train(model, profile, 3)
    profile.close()
    model(torch.ones(1)).backward()
    hidden = dict(zip(('in place', 'the model'), (['backbone'], ['backbone', 'head'])))
    assert profile.unseen() == hidden.get(how, [])
    assert profile.iterations == 3
    seen = 2 - len(profile.unseen())
    assert clock.now == 3 * (2 + 2 * seen) * 1_000_000
    types = [one.type for one in profile.result()]
    assert types == ['Layer', 'Linear'][len(profile.unseen()) :]
    assert len(graphs) == 1 or early
