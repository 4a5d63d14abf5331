"""Comparison of the folders of two trainings."""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

LONG = 160
TIMES = re.compile(r'(^|[/ ])(data_)?time$|^eta$')
# Logs are compared separately; configs name other types.
NOT_COMPARED = re.compile(r'(^|/)\d{8}_\d{6}(/|\.log$|\.py$)|^observed$')
RECORD = re.compile(r'^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d - mmengine - (?:.*? - )?([A-Z]+) - ', re.M)
# The logger prefixes errors with file, function and line.
PLACE = re.compile(r'^\S+\.py - \w+ - \d+ - ')
CHECKPOINT = re.compile(r'\.pth$')
MASKS = (
    (re.compile(r'\d{8}_\d{6}'), 'DATE'),
    (re.compile(r'-[0-9a-f]{8}\.pth'), '-SUM.pth'),
    (re.compile(r'eta: .*?(?=  )'), 'eta: T'),
    (re.compile(r'time: [\d.]+'), 'time: T'),
    (re.compile(r'\b0x[0-9a-f]+'), '0xADDRESS'),
)
# Log records with the config, the machine or type names.
DESCRIPTIONS = ('Config:', '\n-----', 'Hooks will be executed', 'Distributed training')


@dataclass(frozen=True)
class Difference:
    """Difference between two trainings: its kind, its place and both values."""

    kind: str
    where: str
    stock: str = ''
    ours: str = ''

    def __str__(self) -> str:
        return f'{self.kind} at {self.where}: stock {self.stock}, ours {self.ours}'


def compare(stock: Path, ours: Path) -> list[Difference]:
    """Return the first difference of each kind and place between two trainings."""
    one, other = (_observed(root) for root in (stock, ours))
    if one['error'] or other['error']:
        return list(_errors(one, other))
    found = [*_process(one, other), *_files(stock, ours), *_logs(stock, ours)]
    return list({(each.kind, each.where): each for each in reversed(found)}.values())[::-1]


def _observed(root: Path) -> dict[str, Any]:
    with open(root / 'observed', 'rb') as file:
        return pickle.load(file)


def _errors(stock: dict, ours: dict) -> Iterator[Difference]:
    kinds = [str(one['error']).partition(':')[0] for one in (stock, ours)]
    if kinds[0] != kinds[1]:
        where = _place(ours['trace'] or stock['trace'])
        yield Difference('error', where, _short(stock['error']), _short(ours['error']))


def _place(trace: str) -> str:
    """Return file and function of the last line of mmengine or mmtempo in a traceback."""
    lines = re.findall(r'File "(.*?)", line (\d+), in (\w+)', trace)
    known = [line for line in lines if re.search(r'mmtempo/(?!test)|mmengine', line[0])]
    path, _, name = (known or lines or [('', 0, '')])[-1]
    return f'{Path(path).name}:{name}'


def _process(stock: dict, ours: dict) -> Iterator[Difference]:
    for name in ('weights', 'optimizer', 'schedules', 'lr', 'counts', 'books'):
        yield from _tree(name, '', stock[name], ours[name])
    yield from _hub('hub', '', stock['hub'], ours['hub'])
    yield from _notes(stock['notes'], ours['notes'])


def _notes(stock: list, ours: list) -> Iterator[Difference]:
    """Compare the notes of users' code: the events of each kind, then the order of all."""
    for kind in dict.fromkeys(event[0] for event in [*stock, *ours]):
        one, other = ([event for event in events if event[0] == kind] for events in (stock, ours))
        if one == other:
            continue
        pairs = [pair for pair in zip(one, other) if pair[0] != pair[1]]
        first = pairs[0] if pairs else (f'{len(one)} events', f'{len(other)} events')
        yield Difference('seen', kind, *map(_short, first))
    names = [[event[0] for event in events] for events in (stock, ours)]
    if names[0] != names[1] and sorted(names[0]) == sorted(names[1]):
        yield Difference('seen.order', 'events', 'in order', 'in another order')


def _hub(kind: str, where: str, stock: Any, ours: Any) -> Iterator[Difference]:
    """Compare message hubs: histories, information, and the keys that a resume restores."""
    if not isinstance(stock, dict) or not isinstance(ours, dict):
        yield from _tree(kind, where, stock, ours)
        return
    for part in ('log_scalars', 'runtime_info', 'resumed_keys'):
        one, other = stock.get(part, {}), ours.get(part, {})
        name = f'{kind}.{part}'
        yield from _keys(name, where, one, other)
        for key in one:
            if key not in other or TIMES.search(key) or key == 'cfg':
                continue
            if part == 'log_scalars':
                yield from _history(name, f'{where}{key}', one[key], other[key])
            else:
                yield from _tree(name, f'{where}{key}', one[key], other[key])


def _history(kind: str, where: str, stock: Any, ours: Any) -> Iterator[Difference]:
    pairs = [
        [np.asarray(part, dtype=float) for part in (one if isinstance(one, tuple) else one.data)]
        for one in (stock, ours)
    ]
    (values, counts), (others, other_counts) = pairs
    if len(values) != len(others):
        yield Difference(f'{kind}.length', where, str(len(values)), str(len(others)))
    least = min(len(values), len(others))
    for name, one, other in (('value', values, others), ('count', counts, other_counts)):
        one, other = one[-least:] if least else one[:0], other[-least:] if least else other[:0]
        if np.array_equal(one, other, equal_nan=True):
            continue
        is_close = np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True)
        name = f'{name}.rounding' if is_close else name
        at = int(np.nonzero(~((one == other) | (np.isnan(one) & np.isnan(other))))[0][0])
        yield Difference(f'{kind}.{name}', where, repr(float(one[at])), repr(float(other[at])))


def _keys(kind: str, where: str, stock: dict, ours: dict) -> Iterator[Difference]:
    missing = [key for key in stock if key not in ours]
    more = [key for key in ours if key not in stock]
    for key in missing:
        yield Difference(f'{kind}.missing', f'{where}{key}', _short(stock[key]), 'nothing')
    for key in more:
        yield Difference(f'{kind}.more', f'{where}{key}', 'nothing', _short(ours[key]))
    one, other = [key for key in stock if key in ours], [key for key in ours if key in stock]
    if one != other:
        moved = next(pair for pair in zip(one, other) if pair[0] != pair[1])
        yield Difference(f'{kind}.order', where, *map(str, moved))


def _tree(kind: str, where: str, stock: Any, ours: Any) -> Iterator[Difference]:
    """Compare nested values: types, order and bits."""
    if type(stock) is not type(ours):
        yield Difference(f'{kind}.type', where, *map(_typed, (stock, ours)))
    elif isinstance(stock, torch.Tensor):
        if _bits(stock) != _bits(ours):
            yield Difference(kind, where, _short(stock), _short(ours))
    elif isinstance(stock, np.ndarray):
        if stock.dtype != ours.dtype or stock.tobytes() != ours.tobytes():
            yield Difference(kind, where, _short(stock), _short(ours))
    elif isinstance(stock, dict):
        yield from _keys(kind, where, stock, ours)
        for key in stock:
            if key in ours and not TIMES.search(str(key)):
                yield from _tree(kind, f'{where}[{key!r}]', stock[key], ours[key])
        if getattr(stock, '_metadata', None) != getattr(ours, '_metadata', None):
            yield Difference(f'{kind}.metadata', where, 'metadata', 'other metadata')
    elif isinstance(stock, (list, tuple)):
        if len(stock) != len(ours):
            yield Difference(f'{kind}.length', where, str(len(stock)), str(len(ours)))
        for index, pair in enumerate(zip(stock, ours)):
            yield from _tree(kind, f'{where}[{index}]', *pair)
    elif not _same(stock, ours):
        yield Difference(kind, where, _short(stock), _short(ours))


def _same(stock: Any, ours: Any) -> bool:
    if isinstance(stock, str):
        return _masked(stock) == _masked(ours)
    if isinstance(stock, float) and math.isnan(stock):
        return math.isnan(ours)
    return bool(stock == ours) or _masked(repr(stock)) == _masked(repr(ours))


def _bits(tensor: torch.Tensor) -> tuple:
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, content


def _files(stock: Path, ours: Path) -> Iterator[Difference]:
    one, other = _names(stock), _names(ours)
    for name in one:
        if name not in other:
            yield Difference('files.missing', name, 'a file', 'nothing')
    for name in other:
        if name not in one:
            yield Difference('files.more', name, 'nothing', 'a file')
    for name in sorted(set(one) & set(other)):
        if CHECKPOINT.search(name):
            yield from _checkpoint(name, one[name], other[name])
        else:
            texts = [_masked(path.read_text()) for path in (one[name], other[name])]
            if texts[0] != texts[1]:
                kind = 'marker' if name.endswith('last_checkpoint') else 'content'
                yield Difference(f'files.{kind}', name, *map(_short, texts))


def _names(root: Path) -> dict[str, Path]:
    paths = [path for path in root.rglob('*') if path.is_file()]
    found: dict[str, Path] = {}
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        name = str(path.relative_to(root))
        if not NOT_COMPARED.search(name):
            # A file published before and after a resume differs in its checksum: compare the last.
            found[_masked(name)] = path
    return dict(sorted(found.items()))


def _checkpoint(name: str, stock: Path, ours: Path) -> Iterator[Difference]:
    one, other = (torch.load(path, weights_only=False) for path in (stock, ours))
    yield from _keys('state', f'{name}: ', one, other)
    for key in one:
        if key not in other:
            continue
        where = f'{name}: '
        if key == 'message_hub':
            yield from _hub('state.hub', where, one[key], other[key])
            continue
        if key == 'meta':
            for part in (one[key], other[key]):
                part.pop('cfg', None)
        yield from _tree(f'state.{key}', where, one[key], other[key])


def _logs(stock: Path, ours: Path) -> Iterator[Difference]:
    yield from _rows(stock, ours)
    one, other = _records(stock), _records(ours)
    for line in dict.fromkeys(one):
        if one.count(line) > other.count(line):
            yield Difference('log.missing', _first_words(line), _short(line), 'not there')
    for line in dict.fromkeys(other):
        if other.count(line) > one.count(line):
            kind = 'more' if line.startswith('INFO') else 'warning'
            yield Difference(f'log.{kind}', _first_words(line), 'not there', _short(line))
    common = set(one) & set(other)
    kept = [[line for line in lines if line in common] for lines in (one, other)]
    if kept[0] != kept[1] and sorted(kept[0]) == sorted(kept[1]):
        first = next(pair for pair in zip(*kept) if pair[0] != pair[1])
        yield Difference('log.order', '', *map(_short, first))


def _first_words(line: str) -> str:
    return re.sub(r'\d+', 'N', ' '.join(line.split()[:4]))


def _records(root: Path) -> list[str]:
    """Return level and text of each log record, without times."""
    paths = [path for path in root.rglob('*.log') if path.parent.parent.parent == root]
    text = '\n'.join(path.read_text() for path in sorted(paths))
    starts = [*RECORD.finditer(text)]
    ends = [match.start() for match in starts[1:]] + [len(text)]
    found = []
    for match, end in zip(starts, ends):
        content = PLACE.sub('', text[match.end() : end].rstrip())
        if not content.startswith(DESCRIPTIONS) and not content.startswith('\n'):
            found.append(f'{match.group(1)} {_masked(content)}')
    return found


def _rows(stock: Path, ours: Path) -> Iterator[Difference]:
    """Compare the rows of the JSON logs: keys, their order, values."""
    for pattern in ('vis_data/2*.json', 'vis_data/scalars.json'):
        one, other = (_read_rows(root, pattern) for root in (stock, ours))
        where = Path(pattern).name
        if len(one) != len(other):
            yield Difference('json.rows', where, str(len(one)), str(len(other)))
        for row, other_row in zip(one, other):
            yield from _keys('json', f'{where}: ', row, other_row)
            for key, value in row.items():
                if key not in other_row or TIMES.search(key) or value == other_row[key]:
                    continue
                found = other_row[key]
                numbers = isinstance(value, (int, float)) and isinstance(found, (int, float))
                is_close = numbers and math.isclose(value, found, rel_tol=1e-6)
                kind = 'json.rounding' if is_close else 'json.value'
                yield Difference(kind, f'{where}: {key}', str(value), str(found))


def _read_rows(root: Path, pattern: str) -> list[dict]:
    paths = sorted(root.glob(f'work/*/{pattern}'))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def _masked(text: str) -> str:
    for pattern, value in MASKS:
        text = pattern.sub(value, text)
    return text.replace('AsyncCheckpointHook', 'CheckpointHook')


def _typed(value: Any) -> str:
    return f'{type(value).__name__} {_short(value)}'


def _short(value: Any) -> str:
    text = ' '.join(_masked(value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= LONG else f'{text[:LONG]}...'
