"""The key of a cache changes with all that its samples depend on, and with nothing else."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmcv.transforms import KeyMapper, RandomFlip, Resize

from mmtempo.datasets.cache_key import key_of_data, key_of_transform
from mmtempo.datasets.cached_dataset import CachedDataset
from tests.testing.cached_numbers import Decode, Holds, Numbers, numbers

pytestmark = pytest.mark.usefixtures('own_temporary_folder')

CODE = """
from tests.testing.cached_numbers import Decode

OFFSET = {offset}

class Own(Decode):
    def transform(self, results):
        results = super().transform(results)
        results['img'] = results['img'] + OFFSET
        return results

class Derived(Own):
    pass
"""


class WithSets(Numbers):
    order = (0, 8)

    def load_data_list(self) -> list[dict]:
        return [one | dict(labels=set(self.order)) for one in super().load_data_list()]


def table(last: float) -> np.ndarray:
    values = np.zeros((30, 100))
    values[15, 0] = last
    return values


@pytest.mark.parametrize(
    'make',
    [
        table,
        lambda v: np.float32(v),
        lambda v: np.array([v, None]),
        lambda v: torch.full((2000,), v),
        lambda v: torch.full((2, 3), v, dtype=torch.bfloat16),
        lambda v: [{'a': (Holds(v),)}],
        lambda v: KeyMapper(transforms=[Holds(v)], mapping=dict(img='img')),
        lambda v: re.compile(str(v)),
        lambda v: functools.partial(int, base=v),
        lambda v: Holds(v).transform,
        lambda v: Path(str(v)),
        lambda v: [table, len, Numbers][v],
    ],
)
def test_keys_depend_on_nested_values(make: Any) -> None:
    one, other, again = (key_of_transform(Holds(make(value))) for value in (1, 2, 1))
    assert one == again
    assert one[0] != other[0]
    assert not one[1]


def test_keys_of_sets_and_cycles() -> None:
    assert key_of_transform(Holds({0, 8})) == key_of_transform(Holds({8, 0}))
    cyclic = Holds(None)
    cyclic.value = [cyclic]
    assert not key_of_transform(cyclic)[1]


def test_what_cannot_be_compared_is_named() -> None:
    class Local(Decode):
        pass

    for value, name in (
        (threading.Lock(), 'lock'),
        (os, 'module'),
        (lambda: 0, '<lambda>'),
        (Local(), 'Local'),
    ):
        (unknown,) = key_of_transform(Holds(value))[1]
        assert unknown.endswith(name)


def test_other_processes_find_the_same_keys() -> None:
    """Ranks share a cache, also with other hashes of strings."""
    code = (
        'from mmcv.transforms import RandomFlip, Resize\n'
        'from mmtempo.datasets.cache_key import key_of_transform\n'
        'print(*(key_of_transform(one)[0] for one in (Resize((9, 8)), RandomFlip(0.5))))'
    )
    expected = [key_of_transform(one)[0] for one in (Resize((9, 8)), RandomFlip(0.5))]
    environment = dict(os.environ, PYTHONHASHSEED='7')
    found = subprocess.run(
        [sys.executable, '-c', code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.split()[-2:] == expected  # after what mmcv prints


def own_module(folder: Path, offset: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a module as another process would after an edit of its file."""
    path = folder / f'version_{len(list(folder.iterdir()))}' / 'own_code.py'
    path.parent.mkdir()
    path.write_text(CODE.format(offset=offset))
    spec = importlib.util.spec_from_file_location('own_code', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, 'own_code', module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize('name', ['Own', 'Derived'])
def test_edited_source_file_serves_no_stale_samples(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = dict(until=1, folder=str(tmp_path / 'cache'))
    (tmp_path / 'code').mkdir()
    for offset, computed in ((1, 6), (1, 0), (2, 6), (1, 0)):
        transform = getattr(own_module(tmp_path / 'code', offset, monkeypatch), name)()
        cached = CachedDataset(Numbers(folder, pipeline=[transform]), **options)
        before = type(transform).calls
        images = [cached[number]['img'] for number in range(6)]
        assert [int(image[0, 0, 0]) for image in images] == [*range(1 + offset, 7 + offset)]
        assert type(transform).calls - before == computed


def test_versions_and_samples_are_part_of_the_key(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key_of_data(numbers(folder))
    assert key_of_data(numbers(folder)) == before
    assert key_of_data(numbers(folder, count=5)) != before
    monkeypatch.setattr(sys.modules['mmseg'], '__version__', '99')
    assert key_of_data(numbers(folder)) != before


@pytest.mark.parametrize('serialize', [False, True])
def test_key_does_not_depend_on_the_order_of_sets(
    folder: str, serialize: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = []
    for order in ((0, 8), (8, 0), (0, 9)):
        monkeypatch.setattr(WithSets, 'order', order)
        dataset = WithSets(folder, pipeline=[Decode()], serialize_data=serialize)
        dataset.full_init()
        keys.append(key_of_data(dataset))
    assert keys[0] == keys[1] != keys[2]
