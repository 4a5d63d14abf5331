"""The state of a model is what `state_dict` says, whatever its modules do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mmtempo.checkpoint.model_state import state_of
from tests.testing.trees import same


class Mixed(nn.Module):
    """Tied weights, a module that is there twice, and tables with nothing in them."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.ones(2))
        self.nothing = self.nobody = None
        self.register_parameter('none', None)
        self.register_buffer('seen', torch.zeros(3))
        self.register_buffer('hidden', torch.zeros(3), persistent=False)
        self.register_buffer('unset', None)
        self.body = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2))
        self.again = self.body[0]
        self.add_module('empty', None)


class Extra(nn.Linear):
    def get_extra_state(self) -> dict:
        return dict(seen=3)

    def set_extra_state(self, state: Any) -> None:
        pass


class Other(nn.Linear):
    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        destination[prefix + 'mine'] = torch.ones(1)


class Whole(nn.Linear):
    def state_dict(self, *args: Any, destination: Any, prefix: str = '', **kwargs: Any) -> Any:
        destination[prefix + 'whole'] = torch.ones(1)
        return destination


def hook(model: Mixed) -> None:
    model.body[1].register_state_dict_post_hook(
        lambda module, state, prefix, metadata: state.update({prefix + 'x': torch.ones(1)})
    )


def pre_hook(model: Mixed) -> None:
    model.body[2].register_state_dict_pre_hook(lambda module, *_: module.bias.data.fill_(5))


def method(model: Mixed) -> None:
    model.body[0]._save_to_state_dict = lambda destination, prefix, keep_vars: None


def add(kind: type) -> Callable:
    return lambda model: model.body.append(kind(2, 2))


def nothing(model: Mixed) -> None:
    pass


@pytest.mark.parametrize(
    ('change', 'is_plain'),
    [(nothing, True), (hook, False), (pre_hook, False), (method, False)]
    + [(add(kind), False) for kind in (Extra, Other, Whole)],
)
def test_is_what_state_dict_returns(change: Callable, is_plain: bool) -> None:
    model = Mixed()
    change(model)
    expected = model.state_dict()
    state, metadata = state_of(model)
    assert (metadata is None) == (not is_plain)
    if metadata is not None:
        state._metadata = metadata()
    assert same(state, expected)
    assert same(state._metadata, expected._metadata)
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor):
            assert not tensor.requires_grad
            if 'x' not in name and 'mine' not in name and 'whole' not in name:
                assert tensor.data_ptr() == expected[name].data_ptr()


def test_structures_that_change_are_seen() -> None:
    """Nothing is remembered from one time to the next."""
    model = Mixed()
    state_of(model)
    model.seen = torch.full((3,), 2.0)  # replaced, not filled
    model.body[0].weight = nn.Parameter(torch.zeros(5, 5))
    model.body[2] = nn.LayerNorm(4)
    model.late = nn.Parameter(torch.ones(1))
    del model.again
    hook_of_one = model.body.register_state_dict_post_hook(lambda *_: None)
    assert state_of(model)[1] is None
    hook_of_one.remove()
    state, metadata = state_of(model)
    assert metadata is not None
    assert same(state, model.state_dict())
    assert same(metadata(), model.state_dict()._metadata)
