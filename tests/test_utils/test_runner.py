"""Models and optimizers are reached through their wrappers."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from mmengine.model import MMDistributedDataParallel
from mmengine.optim import OptimWrapper, OptimWrapperDict

from mmtempo.utils.runner import optimizers_of, unwrapped, wrappers_of


def wrapper_of(model: torch.nn.Module) -> OptimWrapper:
    return OptimWrapper(torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_plain_model_is_returned_as_it_is() -> None:
    model = torch.nn.Linear(1, 1)
    assert unwrapped(model) is model


def test_a_distributed_model_is_unwrapped() -> None:
    model = torch.nn.Linear(1, 1)
    wrapped = MMDistributedDataParallel.__new__(MMDistributedDataParallel)
    torch.nn.Module.__init__(wrapped)
    wrapped.module = model
    assert unwrapped(wrapped) is model


def test_a_single_wrapper_and_a_dict_of_wrappers_are_lists() -> None:
    first, second = (wrapper_of(torch.nn.Linear(1, 1)) for _ in range(2))
    assert wrappers_of(SimpleNamespace(optim_wrapper=first)) == [first]
    several = SimpleNamespace(optim_wrapper=OptimWrapperDict(a=first, b=second))
    assert wrappers_of(several) == [first, second]
    assert optimizers_of(several) == [first.optimizer, second.optimizer]
