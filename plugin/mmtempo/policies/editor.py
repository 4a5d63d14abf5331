"""Change a config key by key, and record the changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mmengine.config import Config

from .drop_in import KEPT, ConfigChange

_MISSING = object()


class Editor:
    """Setter of config keys that leaves the user's --cfg-options as they are.

    Args:
        cfg: The config; it is changed in place.
        keep: Dotted keys, as of --cfg-options, that are not changed. Defaults to ().
    """

    def __init__(self, cfg: Config, keep: Collection[str] = ()) -> None:
        self.cfg, self._keep = cfg, keep
        self.changes: list[ConfigChange] = []

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a dotted key; numbers are indices of lists."""
        node: Any = self.cfg
        for part in key.split('.'):
            node = _child(node, part)
            if node is _MISSING:
                return default
        return node

    def is_kept(self, key: str) -> bool:
        """Return whether a kept key is this key, contains it, or is contained in it."""
        return any(
            kept == key or key.startswith(f'{kept}.') or kept.startswith(f'{key}.')
            for kept in self._keep
        )

    def set(self, key: str, value: Any, why: str) -> None:
        """Set a key and record the change; record a kept key as left alone."""
        before = self.get(key, _MISSING)
        if before is not _MISSING and before == value:
            return
        if self.is_kept(key):
            self.leave(key, KEPT)
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
        """Record that a key is left alone, and why."""
        value = self.get(key)
        simple = value is not None and not isinstance(value, (Mapping, list, tuple))
        shown = repr(value) if simple else None
        self.changes.append(ConfigChange(key, shown, shown, why))


def _child(node: Any, part: str) -> Any:
    """Return an item of a dict or a list, or `_MISSING`."""
    if isinstance(node, (list, tuple)):
        return node[int(part)] if part.isdigit() and int(part) < len(node) else _MISSING
    if isinstance(node, (Config, Mapping)) and part in node:
        return node[part]
    return _MISSING
