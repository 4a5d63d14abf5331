"""Find modules of a model by name, through what wraps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from torch import nn

from mmtempo.utils.suggest import did_you_mean

WITHOUT_FORWARD = (nn.ModuleList, nn.ModuleDict)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """Return a model and the models that it wraps, as for distributed training; innermost last."""
    layers = [model]
    while True:
        children = list(layers[-1].children())
        if len(children) != 1 or getattr(layers[-1], 'module', None) is not children[0]:
            return layers
        layers.append(children[0])


def find_modules(
    model: nn.Module, names: str | Sequence[str], key: str = 'stage_profile.modules'
) -> dict[str, nn.Module]:
    """Return modules of a model by their dotted names.

    Args:
        model: The model; it may be wrapped for distributed training.
        names: Names such as 'backbone' or 'backbone.stages.2', or 'auto' for the direct children.
            A list of modules is replaced by its items.
        key: The config key of the names, for error messages.
            Defaults to 'stage_profile.modules'.
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
    """Yield names and modules, with containers that have no `forward` replaced by their items."""
    for name, module in modules:
        if isinstance(module, WITHOUT_FORWARD):
            yield from opened((f'{name}.{inner}', m) for inner, m in module.named_children())
        else:
            yield name, module


def _module_of(model: nn.Module, name: str, key: str) -> nn.Module:
    """Return a submodule; raise ValueError that names `key` where it does not exist."""
    try:
        if name:
            return model.get_submodule(name)
    except AttributeError:
        pass  # the error below lists the modules that exist
    hint = did_you_mean(name, (known for known, _ in model.named_modules() if known), most=3)
    children = ', '.join(known for known, _ in model.named_children())
    raise ValueError(
        f'{key}: {type(model).__name__} has no module {name!r}{hint or "."} '
        f"Expected 'auto' or names of its modules: {children}, or what they contain"
    )
