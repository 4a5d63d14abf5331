"""Changes a config, key by key, and keeps account of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mmengine.config import Config

from .drop_in import ConfigChange

_MISSING = object()


class Editor:
    """Sets keys of a config, but for those that somebody has set on purpose.

    Args:
        cfg: Is changed in place.
        keep: Dotted keys, as of --cfg-options, that stay what they are.
    """

    def __init__(self, cfg: Config, keep: Collection[str] = ()) -> None:
        self.cfg, self._keep = cfg, keep
        self.changes: list[ConfigChange] = []

    def get(self, key: str, default: Any = None) -> Any:
        """What a dotted key says; numbers step into lists."""
        node: Any = self.cfg
        for part in key.split('.'):
            node = _child(node, part)
            if node is _MISSING:
                return default
        return node

    def is_kept(self, key: str) -> bool:
        """Whether the key, or one it lies in, or part of what it holds, is set on purpose."""
        return any(
            one == key or key.startswith(f'{one}.') or one.startswith(f'{key}.')
            for one in self._keep
        )

    def set(self, key: str, value: Any, why: str) -> None:
        """Change it, and note that; one that is kept is noted as left alone."""
        before = self.get(key, _MISSING)
        if before is not _MISSING and before == value:
            return
        if self.is_kept(key):
            self.leave(key, 'is kept as --cfg-options has it')
            return
        *parents, last = key.split('.')
        node: Any = self.cfg
        for part in parents:
            child = _child(node, part)
            if child is _MISSING or child is None:
                node[part] = {}
                child = node[part]
            node = child
        node[int(last) if isinstance(node, (list, tuple)) else last] = value
        shown = None if before is _MISSING else repr(before)
        self.changes.append(ConfigChange(key, shown, repr(value), why))

    def leave(self, key: str, why: str) -> None:
        """Note that it stays, and why."""
        value = self.get(key)
        simple = value is not None and not isinstance(value, (Mapping, list, tuple))
        shown = repr(value) if simple else None
        self.changes.append(ConfigChange(key, shown, shown, why))


def _child(node: Any, part: str) -> Any:
    if isinstance(node, (list, tuple)):
        return node[int(part)] if part.isdigit() and int(part) < len(node) else _MISSING
    if isinstance(node, (Config, Mapping)) and part in node:
        return node[part]
    return _MISSING
