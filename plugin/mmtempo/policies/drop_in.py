"""Exchanges stock parts of a config that wait, for device, disk or data; and back again."""

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

# By the class, not by its name: a LoggerHook of another package is not the stock one.
STOCK: dict[str, type] = {ours: get_object_from_string(path) for path, ours in OURS.items()}
BY_CLASS = {stock: ours for ours, stock in STOCK.items()}
PACKAGE = 'mmtempo'


@dataclass(frozen=True)
class ConfigChange:
    """One part of a config: what it was, what it is now, and why; None where there is none."""

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
    """Several lines: what was changed, and what was left alone."""
    lines = []
    for title, wanted in (('changed', True), ('left alone', False)):
        found = [change for change in changes if change.changed is wanted]
        if found:
            lines += [f'{title}:', *(f'  {change}' for change in found)]
    return '\n'.join(lines)


def zero_wait(cfg: Config, keep: Collection[str] = ()) -> list[ConfigChange]:
    """Exchange what is stock for what doesn't wait, in place.

    Only stock classes are exchanged, under whatever name the config has them; a class of
    somebody else's, even one made from a stock one, does something of its own and stays.

    Args:
        cfg: The complete config of a training.
        keep: Keys that were set on purpose, as in --cfg-options; their types stay.
            Defaults to ().

    Returns:
        What was changed, and what was left alone and why.
    """
    parts = list(_parts(cfg))
    changes = _add_hooks(cfg, keep)
    for part in parts:
        if part.node is None and part.registry is not HOOKS:
            continue  # there is none, and none is added
        before, ours, reason = part.name, None, 'is kept as --cfg-options has it'
        if not _is_set(part.key, keep):
            ours, reason = _ours(part)
        if ours == ACCURACY_HEAD:
            part.node['head'] = part.path
        if ours is not None:
            part.node['type'] = ours
        changes.append(ConfigChange(part.key, before, ours or before, reason))
    return changes + _look_at_hooks(cfg) + _import_us(cfg)


def stock(cfg: Config) -> list[ConfigChange]:
    """The way back, in place: stock types, without the arguments that only ours take."""
    changes = []
    for part in _parts(cfg):
        before, after, reason = part.name, None, 'as mmengine and mmseg have it'
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
    """A place in a config whose type may be exchanged."""

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
        """What a config can say, also where it said it with the class itself."""
        kind = self.kind
        return kind if isinstance(kind, str) else f'{kind.__module__}.{kind.__qualname__}'

    def find(self, kind: Any) -> Any:
        """The class of that name, or None."""
        if not isinstance(kind, str):
            return kind
        # `get` alone does not look into the default scope.
        scope = self.node.get('_scope_', self.scope)
        with self.registry.switch_scope_and_registry(scope) as registry:
            return registry.get(kind)


def class_of(cfg: Config, registry: Registry, node: Any, default: str | None = None) -> Any:
    """The class that a part of a config names, however it does; None if unknown.

    Args:
        cfg: Whose default scope it is.
        registry: Where the class is.
        node: The part.
        default: What it is without a type. Defaults to None.
    """
    part = _Part('', registry, node, cfg.get('default_scope', 'mmengine'), default)
    return None if part.kind is None else part.find(part.kind)


def optim_wrapper_class(cfg: Config) -> Any:
    """The class of the optimizer wrapper, however the config names it; None if unknown."""
    return class_of(cfg, OPTIM_WRAPPERS, cfg.get('optim_wrapper') or {}, 'OptimWrapper')


def _is_set(key: str, keys: Collection[str]) -> bool:
    """Whether the type at `key` is set by one of the keys."""
    return any(one in (key, f'{key}.type') or key.startswith(f'{one}.') for one in keys)


def _parts(cfg: Config) -> Iterator[_Part]:
    scope = cfg.get('default_scope', 'mmengine')
    hooks, model = cfg.get('default_hooks') or {}, cfg.get('model')
    for name in DEFAULT_HOOKS:
        if name in hooks:
            yield _Part(f'default_hooks.{name}', HOOKS, hooks[name], scope)
    yield _wrapper_part(cfg, scope)
    for split in ('train', 'val', 'test'):
        untyped = 'has no type: by_epoch says which, and takes stock loops only'
        default = None if split == 'train' else f'{split.capitalize()}Loop'
        yield _Part(f'{split}_cfg', LOOPS, cfg.get(f'{split}_cfg'), scope, default, untyped)
    if not isinstance(model, Mapping):
        return
    yield _Part('model.data_preprocessor', MODELS, model.get('data_preprocessor'), scope)
    # mmseg's configs have it here as well; mmengine reads it where the model has none.
    yield _Part('data_preprocessor', MODELS, cfg.get('data_preprocessor'), scope)
    for name in ('decode_head', 'auxiliary_head'):
        heads = model.get(name)
        if isinstance(heads, (list, tuple)):
            for index, head in enumerate(heads):
                yield _Part(f'model.{name}.{index}', MODELS, head, scope)
        else:
            yield _Part(f'model.{name}', MODELS, heads, scope)


def _wrapper_part(cfg: Config, scope: str | None) -> _Part:
    """Not every wrapper without a type is an OptimWrapper."""
    wrapper = cfg.get('optim_wrapper')
    default, untyped = None, 'has no type'
    if not isinstance(wrapper, Mapping):
        pass
    elif 'optimizer' not in wrapper:
        if any(isinstance(value, Mapping) for value in wrapper.values()):
            untyped = 'names several optimizers, their wrappers are left alone'
    elif cfg.get('strategy'):
        untyped = 'has no type, the strategy supplies its own'
    else:
        default = 'OptimWrapper'
    return _Part('optim_wrapper', OPTIM_WRAPPERS, wrapper, scope, default, untyped)


def _ours(part: _Part) -> tuple[str | None, str]:
    """The type to take instead, and why; or None, and why not."""
    if part.node is None:
        return None, 'is switched off'
    if not isinstance(part.node, Mapping):
        return None, 'is built already'
    if part.kind is None:
        return None, part.untyped
    if not (isinstance(part.kind, (str, type)) or inspect.isfunction(part.kind)):
        return None, 'has a type that is no class'
    cls = part.find(part.kind)
    if cls is None:
        return None, 'is in no registry'
    if cls.__module__.partition('.')[0] == PACKAGE:
        return None, "is mmtempo's own"
    if '_head' in part.key:
        reason = why_not_sparse(cls)
        return (ACCURACY_HEAD, REASONS[ACCURACY_HEAD]) if reason is None else (None, reason)
    ours = BY_CLASS.get(cls)
    return (ours, REASONS[ours]) if ours else (None, 'is no stock type')


def _add_hooks(cfg: Config, keep: Collection[str]) -> list[ConfigChange]:
    """Name the hooks that mmengine would add as stock has them."""
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


def _look_at_hooks(cfg: Config) -> list[ConfigChange]:
    """Say which of the custom hooks wait; they are somebody's own choice."""
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


def _import_us(cfg: Config) -> list[ConfigChange]:
    """Whoever loads the config, with whatever tool, gets our types registered."""
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    names = [imports] if isinstance(imports, str) else list(imports)
    before = ', '.join(names) or None
    if PACKAGE in names:
        return [ConfigChange('custom_imports', before, before, 'is imported already')]
    names.append(PACKAGE)
    if cfg.get('custom_imports') is None:
        cfg.custom_imports = dict(imports=names, allow_failed_imports=False)
    else:
        cfg.custom_imports.imports = names
    return [ConfigChange('custom_imports', before, ', '.join(names), 'it registers these types')]


def _name(kind: Any) -> str | None:
    """Without scope or module."""
    return kind.rpartition('.')[2] if isinstance(kind, str) else getattr(kind, '__name__', None)


def _arguments(cls: Any) -> set[str]:
    return {
        name
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
