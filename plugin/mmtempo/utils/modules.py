"""Find modules of a model by name, through what wraps it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence

from torch import nn

WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """A model and what it wraps, as for distributed training, the innermost last."""
    layers = [model]
    while True:
        children = list(layers[-1].children())
        if len(children) != 1 or getattr(layers[-1], 'module', None) is not children[0]:
            return layers
        layers.append(children[0])


def find_modules(
    model: nn.Module, names: str | Sequence[str], key: str = 'stage_profile.modules'
) -> dict[str, nn.Module]:
    """Parts of a model by their dotted names, through what wraps it.

    Args:
        model: It may be wrapped, for distributed training.
        names: As 'backbone' or 'backbone.stages.2'; 'auto' alone for the direct children. Lists
            of modules stand for their items.
        key: Of the config, for error messages. Defaults to 'stage_profile.modules'.
    """
    model = layers_of(model)[-1]
    if names == 'auto':
        return dict(opened(model.named_children()))
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"{key}: expected 'auto' or a list of names of the model's modules, found {names!r}"
        )
    return dict(opened((name, _module_of(model, name, key)) for name in names))


def opened(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Each module by its name; containers, which nobody calls, by what they hold."""
    for name, module in modules:
        if isinstance(module, WITHOUT_FORWARD):
            yield from opened((f'{name}.{inner}', m) for inner, m in module.named_children())
        else:
            yield name, module


def _module_of(model: nn.Module, name: str, key: str) -> nn.Module:
    try:
        if name:
            return model.get_submodule(name)
    except AttributeError:
        pass  # said below, with what there is
    there = [known for known, _ in model.named_modules() if known]
    near = difflib.get_close_matches(name, there, n=3)
    hint = f'; did you mean {" or ".join(map(repr, near))}?' if near else ''
    children = ', '.join(known for known, _ in model.named_children())
    raise ValueError(
        f'{key}: {type(model).__name__} has no module {name!r}{hint} '
        f"Expected 'auto' or names of its modules: {children}, or what they contain"
    )
