"""Models whose modules advance a clock, and forward profiles of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from mmtempo.monitor.forward_profile import ForwardProfile
from mmtempo.utils.modules import find_modules

NAMES = ['backbone', 'neck', 'head']


class Clock:
    """Clock that is set in milliseconds and read in nanoseconds."""

    now = 0.0

    def __call__(self) -> int:
        return round(self.now * 1e6)


class Work(nn.Module):
    """Module that takes `time` milliseconds, and calls its children in order."""

    def __init__(self, clock: Any, time: float, **parts: nn.Module) -> None:
        super().__init__()
        self.clock, self.time = clock, time
        self.weight = nn.Parameter(torch.ones(1))
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.time
        for part in self.children():
            x = part(x)
        return x * self.weight


class Model(Work):
    """Model with three modules that take 6 ms, and 4 ms outside of them."""

    def __init__(self, clock: Any, **parts: nn.Module) -> None:
        super().__init__(clock, 4)
        parts = dict(backbone=Work(clock, 3), neck=Work(clock, 2), head=Work(clock, 1), **parts)
        for name, part in parts.items():
            self.add_module(name, part)


class Head(Work):
    """Head like those of mmseg: only its layers and its loss are called as modules."""

    calls_itself = False

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 100  # before the first child, so it is not measured
        x = self(x) if self.calls_itself else self.forward(x)
        self.clock.now += 10
        x = self.criteria[0](x)
        self.clock.now += 100
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.now += 20
        x = self.first(x)
        self.clock.now += 1
        return self.second(x)


class Segmentor(Work):
    def __init__(self, clock: Any) -> None:
        super().__init__(clock, 0)
        self.backbone = Work(clock, 1000)
        self.heads = nn.ModuleList(self.head() for _ in range(2))

    def head(self) -> Head:
        parts: dict[str, nn.Module] = dict(first=Work(self.clock, 2), second=Work(self.clock, 3))
        parts['criteria'] = nn.ModuleList([Work(self.clock, 4)])
        return Head(self.clock, 0, **parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.backbone(x)
        self.clock.now += 7  # between two modules: part of the rest
        return self.heads[0].loss(x) + self.heads[1].loss(x)


def hooks_of(model: nn.Module) -> int:
    return sum(
        len(hooks)
        for module in model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
    )


def profile_of(
    model: nn.Module, names: Any = NAMES, clock: Any = None, **options: Any
) -> ForwardProfile:
    clock = clock or model.clock
    profile = ForwardProfile(model, find_modules(model, names), clock=clock, **options)
    profile.start()
    return profile


def train(model: nn.Module, profile: ForwardProfile, times: int = 1, **how: Any) -> None:
    for _ in range(times):
        model(torch.ones(1), **how).backward()
        profile.end_iteration()


def taken(profile: ForwardProfile) -> dict[str, tuple[float, float]]:
    """Return calls and milliseconds per iteration by name."""
    return {one.name: (one.calls, pytest.approx(one.seconds * 1000)) for one in profile.result()}


def shares(profile: ForwardProfile, *names: str) -> list[float]:
    """Return the shares of these modules, and of the rest."""
    by_name = {one.name: one.share for one in profile.result()}
    return [*(by_name[name] for name in names), profile.rest().share]
