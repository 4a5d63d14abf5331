"""Merges the dicts of a batch's samples, so that a list of dicts reaches nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def merge_dicts(values: list, known: Sequence[str] = (), path: str = '') -> Any:
    """Samples' dicts as one dict of lists; what is no dict stays the list of the samples'.

    Args:
        values: One a sample.
        known: Keys that are there also where the lists of dicts of all samples are empty.
            Defaults to ().
        path: Where in the samples they are. Defaults to ''.
    """
    within = [each[len(path) + 1 :].split('.')[0] for each in known if each.startswith(f'{path}.')]
    if any(map(_is_rows, values)) or (within and all(map(is_empty_list, values))):
        values = _turn_rows(values, within, path)
    if not any(isinstance(value, Mapping) for value in values):
        return values
    for place, value in enumerate(values):
        if not isinstance(value, Mapping):
            raise ValueError(
                f'{path}: sample {place} of the batch has {describe(value)}, others have a dict'
            )
    columns = _columns(values, path, 'sample {} of the batch')
    return {
        key: merge_dicts(each, known, f'{path}.{key}' if path else str(key))
        for key, each in columns
    }


def _columns(rows: Sequence[Mapping], path: str, who: str) -> list[tuple[Any, list]]:
    """What each has of a key, for every key."""
    keys = dict.fromkeys(key for row in rows for key in row)
    for place, row in enumerate(rows):
        for key in keys:
            if key not in row:
                raise ValueError(
                    f'{who.format(place)} has no key {f"{path}.{key}" if path else key!r}, which '
                    f'others have; found {sorted(map(str, row))}'
                )
    return [(key, [row[key] for row in rows]) for key in keys]


def _is_rows(value: Any) -> bool:
    """Whether it is a list of dicts."""
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    return is_list and all(isinstance(row, Mapping) for row in value)


def _turn_rows(values: list, known: Sequence[str], path: str) -> list[dict]:
    """Each sample's list of dicts as a dict of lists; an empty one has no keys to show."""
    turned = {}
    for place, value in enumerate(values):
        if _is_rows(value):
            where = f'dict {{}} of sample {place} of the batch'
            turned[place] = dict(_columns(value, path, where))
        elif not is_empty_list(value):
            raise ValueError(
                f'{path}: sample {place} of the batch has {describe(value)}, '
                'others have a list of dicts'
            )
    keys = dict.fromkeys(key for columns in turned.values() for key in columns)
    keys = keys or dict.fromkeys(known)
    return [turned.get(place, {key: [] for key in keys}) for place in range(len(values))]


def paths_of(merged: dict, above: str = '') -> list[str]:
    paths = []
    for key, value in merged.items():
        path = f'{above}{key}'
        paths += paths_of(value, f'{path}.') if isinstance(value, dict) else [path]
    return paths


def is_empty_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and not value


def describe(value: Any) -> str:
    """What a sample has, for a message."""
    shape = getattr(value, 'shape', None)
    return f'a {type(value).__name__} {f"of shape {tuple(shape)}" if shape else repr(value)[:60]}'
