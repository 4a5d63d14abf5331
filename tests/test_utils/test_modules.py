"""Modules are found by name, through containers and wrappers."""

from __future__ import annotations

import pytest
from torch import nn

from mmtempo.utils.modules import find_modules, layers_of, opened


class Wrapper(nn.Module):
    """A model wrapper with the only child `module`, as DistributedDataParallel."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_layers_are_the_wrappers_and_the_model() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    inner = Wrapper(model)
    outer = Wrapper(inner)
    assert layers_of(outer) == [outer, inner, model]
    assert layers_of(model) == [model]


def test_a_model_with_one_child_of_another_name_is_not_a_wrapper() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    assert layers_of(model) == [model]


def test_names_are_looked_up_inside_the_wrappers() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    assert find_modules(Wrapper(model), ['1']) == {'1': model[1]}


def test_lists_and_dicts_of_modules_are_replaced_by_their_items() -> None:
    first, second = nn.Linear(1, 1), nn.ReLU()
    heads = nn.ModuleList([nn.ModuleDict(dict(a=first)), second])
    assert list(opened([('heads', heads)])) == [('heads.0.a', first), ('heads.1', second)]


def test_an_unknown_name_is_reported_with_its_key() -> None:
    with pytest.raises(ValueError, match=r"model\.part: Sequential has no module '7'"):
        find_modules(nn.Sequential(nn.ReLU()), ['7'], 'model.part')
