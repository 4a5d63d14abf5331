"""A model's `state_dict` in less time: the training waits for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from torch.nn import Module

METHODS = ('state_dict', '_save_to_state_dict', 'get_extra_state', '__getattr__')


class _HasOwnWays(Exception):
    """A module does something of its own for its state."""


def state_of(model: Module) -> tuple[Any, Callable[[], OrderedDict] | None]:
    """`model.state_dict()`, without its `_metadata`, and what makes those later on.

    `state_dict` calls four functions of each module, of which hundreds have no tensor. Where any
    module does something of its own there, it is called, and all that it returns is returned.
    """
    state: OrderedDict = OrderedDict()
    modules: list[tuple[str, Module]] = []
    try:
        _add(model, '', state, modules)
    except _HasOwnWays:
        return model.state_dict(), None

    def metadata() -> OrderedDict:
        return OrderedDict([(path[:-1], {'version': one._version}) for path, one in modules])

    return state, metadata


def _add(module: Module, prefix: str, state: dict, modules: list[tuple[str, Module]]) -> None:
    own, kind = vars(module), cast(Any, type(module))
    if (
        not _is_plain(kind)
        or own['_state_dict_hooks']
        or own['_state_dict_pre_hooks']
        or 'state_dict' in own
        or '_save_to_state_dict' in own
    ):
        raise _HasOwnWays
    modules.append((prefix, module))
    if own['_parameters']:
        for name, tensor in own['_parameters'].items():
            if tensor is not None:
                state[prefix + name] = tensor.detach()
    if own['_buffers']:
        for name, tensor in own['_buffers'].items():
            if tensor is not None and name not in own['_non_persistent_buffers_set']:
                state[prefix + name] = tensor.detach()
    if own['_modules']:
        for name, child in own['_modules'].items():
            if child is not None:
                _add(child, f'{prefix}{name}.', state, modules)


@cache
def _is_plain(kind: Any) -> bool:
    return all(getattr(kind, name, None) is getattr(Module, name) for name in METHODS)
