"""Small training with an optimizer wrapper, and access to its results."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from mmengine.logging import MessageHub
from torch import nn

from tests.testing.common import next_name


class Store:
    """Stand-in for the store that SparseRuntimeInfoHook publishes to the wrappers."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, Any]] = []

    def note(self, key: str, value: Any) -> None:
        # The store of the hook copies at the end of the iteration.
        self.notes.append((key, value.clone() if isinstance(value, torch.Tensor) else value))

    def values(self, key: str) -> list[float]:
        return [float(value) for noted, value in self.notes if noted == key]

    @property
    def keys(self) -> set[str]:
        return {key for key, _ in self.notes}


class Model(nn.Module):
    """Model of two layers, and a third one that never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(6, 8), nn.Linear(8, 3), nn.Linear(2, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs).relu())


class Training:
    """Model, optimizer and optimizer wrapper, with new random data in each iteration.

    Args:
        build: Function of `optimizer=` and `options` that returns the wrapper.
        optimizer: Function of parameter groups that returns the optimizer; None: `sgd`. Defaults
            to None.
        store: Whether to publish a `Store`. Defaults to True.
        max_counts: Number of iterations of the loop; None: not initialized. Defaults to None.
        options: Arguments of the wrapper.
    """

    def __init__(
        self,
        build: Callable,
        optimizer: Callable | None = None,
        store: bool = True,
        max_counts: int | None = None,
        **options: Any,
    ) -> None:
        self.hub = MessageHub.get_instance(next_name())
        self.store = Store()
        if store:
            self.hub.update_info('mmtempo_scalars', self.store, resumed=False)
        torch.manual_seed(0)
        self.model = Model()
        first, *rest = self.model.parameters()
        groups = [dict(params=[first], lr=0.05), dict(params=rest)]
        self.optimizer = (optimizer or sgd)(groups)
        self.wrapper = build(optimizer=self.optimizer, **options)
        if max_counts is not None:
            self.wrapper.initialize_count_status(self.model, 0, max_counts)
        self.iteration = 0

    def run(
        self, iterations: int = 50, poison: tuple[int, ...] = (), by: float = math.nan
    ) -> Training:
        for _ in range(iterations):
            torch.manual_seed(1000 + self.iteration)
            inputs, targets = torch.randn(4, 6), torch.randn(4, 3)
            if self.iteration in poison:
                inputs[0, 0] = by
            with self.wrapper.optim_context(self.model):
                loss = (self.model(inputs).float() - targets).square().mean()
            self.wrapper.update_params(loss)
            self.iteration += 1
        return self

    def weights(self) -> list[bytes]:
        return [param.detach().numpy().tobytes() for param in self.model.parameters()]

    def state(self) -> list[bytes]:
        """Return the bytes of the weights and of the optimizer's state."""
        states = self.optimizer.state.values()
        return self.weights() + [
            value.numpy().tobytes() for state in states for value in state.values()
        ]

    def logged(self, key: str = 'train/grad_norm') -> list[float]:
        """Return the history of a key in the message hub."""
        if key not in self.hub.log_scalars:
            return []
        return self.hub.log_scalars[key].data[0].tolist()


def sgd(groups: list) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.01)


def adamw(groups: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


def adamw_fused(groups: list) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01, fused=True)
