"""Replace stock parts of a config that wait for device, disk or data, and undo it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.config import Config
from mmengine.hooks import EMAHook, LoggerHook, RuntimeInfoHook
from mmengine.registry import HOOKS, LOOPS, MODELS, OPTIM_WRAPPERS, Registry
from mmengine.utils import get_object_from_string

from mmtempo.models.sparse_accuracy_head import why_not_sparse
from mmtempo.replacements import ACCURACY_HEAD, DEFAULT_HOOKS, OURS, REASONS

# Classes instead of names: a LoggerHook of another package is not the stock one.
STOCK: dict[str, type] = {ours: get_object_from_string(path) for path, ours in OURS.items()}
BY_CLASS = {stock: ours for ours, stock in STOCK.items()}
PACKAGE = 'mmtempo'
KEPT = 'is kept, because --cfg-options sets it'


@dataclass(frozen=True)
class ConfigChange:
    """A change of one config key, or the reason for which the key was left alone.

    Attributes:
        key: The dotted key.
        before: The former value as text; None where there was none.
        after: The new value as text, equal to `before` where the key was left alone.
        reason: The reason.
    """

    key: str
    before: str | None
    after: str | None
    reason: str

    @property
    def changed(self) -> bool:
        return self.before != self.after

    def __str__(self) -> str:
        if self.changed:
            return f'{self.key}: {self.before} -> {self.after}; {self.reason}'
        return ' '.join(filter(None, (f'{self.key}:', self.before, self.reason)))


def describe(changes: Collection[ConfigChange]) -> str:
    """Format changes as lines under `changed:` and `left alone:`."""
    lines = []
    for title, is_changed in (('changed', True), ('left alone', False)):
        listed = [change for change in changes if change.changed is is_changed]
        if listed:
            lines += [f'{title}:', *(f'  {change}' for change in listed)]
    return '\n'.join(lines)


def zero_wait(cfg: Config, keep: Collection[str] = ()) -> list[ConfigChange]:
    """Replace stock parts by those of mmtempo, in place.

    Only stock classes are replaced, by whatever name the config refers to them. A class of
    another package may behave differently even if it derives from a stock one, so it is kept.

    Args:
        cfg: The complete config of a training.
        keep: Keys that the user has set, as in --cfg-options; their types are kept.
            Defaults to ().

    Returns:
        The changes, and the parts that were left alone with the reason.
    """
    parts = list(_parts(cfg))
    changes = _add_hooks(cfg, keep)
    for part in parts:
        if part.node is None and part.registry is not HOOKS:
            continue  # the config has no such part
        before, ours, reason = part.name, None, KEPT
        if not _is_set(part.key, keep):
            ours, reason = _ours(part)
        if ours == ACCURACY_HEAD:
            part.node['head'] = part.path
        if ours is not None:
            part.node['type'] = ours
        changes.append(ConfigChange(part.key, before, ours or before, reason))
    return changes + _waiting_custom_hooks(cfg) + _import_package(cfg)


def stock(cfg: Config) -> list[ConfigChange]:
    """Undo `zero_wait` in place: set stock types, and drop the arguments that they do not take."""
    changes = []
    for part in _parts(cfg):
        before, after, reason = part.name, None, 'the stock type'
        if before == ACCURACY_HEAD:
            after = part.node.pop('head')
        elif before in STOCK:
            cls = STOCK[before]
            unknown = _arguments(part.registry.get(before)) - _arguments(cls)
            dropped = sorted(unknown & set(part.node))
            for argument in dropped:
                del part.node[argument]
            if dropped:
                reason = f'it takes no {", ".join(dropped)}'
            bare = part.find(cls.__name__) is cls
            after = cls.__name__ if bare else f'{cls.__module__.split(".")[0]}.{cls.__name__}'
        if after is not None:
            part.node['type'] = after
            changes.append(ConfigChange(part.key, before, _name(after), reason))
    return changes


@dataclass(frozen=True)
class _Part:
    """A part of a config whose type may be replaced.

    Attributes:
        key: Its dotted key.
        registry: The registry that its type is looked up in.
        node: The part itself.
        scope: Default scope of the config.
        default: The type of a part without `type`; None if it has none.
        untyped: The reason to leave a part without type alone.
    """

    key: str
    registry: Registry
    node: Any
    scope: str | None
    default: str | None = None
    untyped: str = 'has no type'

    @property
    def kind(self) -> Any:
        if not isinstance(self.node, Mapping):
            return None if self.node is None else type(self.node)
        return self.node.get('type', self.default)

    @property
    def name(self) -> str | None:
        return _name(self.kind)

    @property
    def path(self) -> str:
        """The type as a string; for a class, its import path."""
        kind = self.kind
        return kind if isinstance(kind, str) else f'{kind.__module__}.{kind.__qualname__}'

    def find(self, kind: Any) -> Any:
        """Return the class of a name, or None."""
        if not isinstance(kind, str):
            return kind
        # `get` alone does not look into the default scope.
        scope = self.node.get('_scope_', self.scope)
        with self.registry.switch_scope_and_registry(scope) as registry:
            return registry.get(kind)


def class_of(cfg: Config, registry: Registry, node: Any, default: str | None = None) -> Any:
    """Return the class of a part of a config; None if unknown.

    Args:
        cfg: The config, for its default scope.
        registry: The registry of the class.
        node: The part; its type may be a name with or without scope, or a class.
        default: The type of a part without `type`. Defaults to None.
    """
    part = _Part('', registry, node, cfg.get('default_scope', 'mmengine'), default)
    return None if part.kind is None else part.find(part.kind)


def optim_wrapper_class(cfg: Config) -> Any:
    """Return the class of the optimizer wrapper; None if unknown."""
    return class_of(cfg, OPTIM_WRAPPERS, cfg.get('optim_wrapper') or {}, 'OptimWrapper')


def _is_set(key: str, keys: Collection[str]) -> bool:
    """Return whether one of `keys` sets the type of the part at `key`."""
    return any(other in (key, f'{key}.type') or key.startswith(f'{other}.') for other in keys)


def _parts(cfg: Config) -> Iterator[_Part]:
    """Yield the parts of a config that have a replacement."""
    scope = cfg.get('default_scope', 'mmengine')
    hooks, model = cfg.get('default_hooks') or {}, cfg.get('model')
    for name in DEFAULT_HOOKS:
        if name in hooks:
            yield _Part(f'default_hooks.{name}', HOOKS, hooks[name], scope)
    yield _wrapper_part(cfg, scope)
    for split in ('train', 'val', 'test'):
        untyped = 'has no type; by_epoch selects among stock loops'
        default = None if split == 'train' else f'{split.capitalize()}Loop'
        yield _Part(f'{split}_cfg', LOOPS, cfg.get(f'{split}_cfg'), scope, default, untyped)
    if not isinstance(model, Mapping):
        return
    yield _Part('model.data_preprocessor', MODELS, model.get('data_preprocessor'), scope)
    # mmseg's configs repeat it here; mmengine reads it where the model has none.
    yield _Part('data_preprocessor', MODELS, cfg.get('data_preprocessor'), scope)
    for name in ('decode_head', 'auxiliary_head'):
        heads = model.get(name)
        if isinstance(heads, (list, tuple)):
            for index, head in enumerate(heads):
                yield _Part(f'model.{name}.{index}', MODELS, head, scope)
        else:
            yield _Part(f'model.{name}', MODELS, heads, scope)


def _wrapper_part(cfg: Config, scope: str | None) -> _Part:
    """Return the optimizer wrapper; one without type is an OptimWrapper in simple cases only."""
    wrapper = cfg.get('optim_wrapper')
    default, untyped = None, 'has no type'
    if not isinstance(wrapper, Mapping):
        pass
    elif 'optimizer' not in wrapper:
        if any(isinstance(value, Mapping) for value in wrapper.values()):
            untyped = 'has several optimizers, whose wrappers are left alone'
    elif cfg.get('strategy'):
        untyped = 'has no type; the strategy chooses it'
    else:
        default = 'OptimWrapper'
    return _Part('optim_wrapper', OPTIM_WRAPPERS, wrapper, scope, default, untyped)


def _ours(part: _Part) -> tuple[str | None, str]:
    """Return the replacement of a part and the reason, or None and the reason for none."""
    if part.node is None:
        return None, 'is disabled'
    if not isinstance(part.node, Mapping):
        return None, 'is an object instead of a config'
    if part.kind is None:
        return None, part.untyped
    if not (isinstance(part.kind, (str, type)) or inspect.isfunction(part.kind)):
        return None, 'has a type that is neither a name nor a class'
    cls = part.find(part.kind)
    if cls is None:
        return None, 'is not registered'
    if cls.__module__.partition('.')[0] == PACKAGE:
        return None, 'is already a type of mmtempo'
    if '_head' in part.key:
        reason = why_not_sparse(cls)
        return (ACCURACY_HEAD, REASONS[ACCURACY_HEAD]) if reason is None else (None, reason)
    ours = BY_CLASS.get(cls)
    return (ours, REASONS[ours]) if ours else (None, 'is not a stock type')


def _add_hooks(cfg: Config, keep: Collection[str]) -> list[ConfigChange]:
    """Set the hooks that mmengine would add as stock hooks."""
    if cfg.get('default_hooks') is None:
        cfg.default_hooks = {}
    changes = []
    for name, (path, arguments) in DEFAULT_HOOKS.items():
        ours, stock_name = OURS[path], path.rpartition('.')[2]
        key = f'default_hooks.{name}'
        if name not in cfg.default_hooks and not _is_set(key, keep):
            cfg.default_hooks[name] = dict(type=ours, **arguments)
            changes.append(ConfigChange(key, stock_name, ours, REASONS[ours]))
    return changes


def _waiting_custom_hooks(cfg: Config) -> list[ConfigChange]:
    """Return which custom hooks wait; they are not replaced, since the user has chosen them."""
    changes = []
    for index, hook in enumerate(cfg.get('custom_hooks') or ()):
        part = _Part(f'custom_hooks.{index}', HOOKS, hook, cfg.get('default_scope', 'mmengine'))
        cls = part.find(part.kind)
        if isinstance(cls, type) and issubclass(cls, EMAHook):
            reason = 'is left alone: stock reads its step count each iteration'
        elif cls in (LoggerHook, RuntimeInfoHook):
            reason = f'is left alone: {REASONS[BY_CLASS[cls]]}'
        else:
            continue
        changes.append(ConfigChange(part.key, part.name, part.name, reason))
    return changes


def _import_package(cfg: Config) -> list[ConfigChange]:
    """Add mmtempo to `custom_imports`, so that any tool that loads the config has its types."""
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    names = [imports] if isinstance(imports, str) else list(imports)
    before = ', '.join(names) or None
    if PACKAGE in names:
        return [ConfigChange('custom_imports', before, before, 'contains mmtempo already')]
    names.append(PACKAGE)
    if cfg.get('custom_imports') is None:
        cfg.custom_imports = dict(imports=names, allow_failed_imports=False)
    else:
        cfg.custom_imports.imports = names
    return [ConfigChange('custom_imports', before, ', '.join(names), 'registers the types above')]


def _name(kind: Any) -> str | None:
    """Return the name of a type without scope or module."""
    return kind.rpartition('.')[2] if isinstance(kind, str) else getattr(kind, '__name__', None)


def _arguments(cls: Any) -> set[str]:
    """Return the names of the arguments of a class."""
    return {
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
