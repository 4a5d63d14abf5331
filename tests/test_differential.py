"""Random trainings and resumes with our parts equal those with stock parts.

A failing seed prints the command that runs it alone; `--shrink` reduces the case. Intended
differences are listed in `documented.py`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mmtempo.dependencies import active_stack, installed_versions
from tests.testing.common import ROOT
from tests.testing.differential import run_case as runs
from tests.testing.differential.cases import (
    HOOKS,
    ORDINARY,
    PLAIN,
    RARE,
    case_of,
    completed,
    described,
    settled,
)
from tests.testing.differential.compare import compare
from tests.testing.differential.documented import DOCUMENTED, OPEN, Entry, explained
from tests.testing.differential.meddlers import MEDDLERS
from tests.testing.differential.run import MEMORY
from tests.testing.differential.run_case import run_case

ENTRIES = [
    pytest.param(entry, id=f'{entry.issue or "documented"} {entry.reason[:50]}')
    for entry in (*DOCUMENTED, *OPEN)
    if entry.stack in ('', active_stack(installed_versions()))
]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if possible: each save is synced, which is slow on a disk."""
    folder = MEMORY if os.path.isdir(MEMORY) else tmp_path
    with tempfile.TemporaryDirectory(dir=folder) as name:
        yield Path(name)


def assert_like_stock(*arguments: str) -> None:
    """Compare in a new process: versions and warnings are cached per process."""
    command = [sys.executable, '-W', 'ignore', '-m', 'tests.testing.differential.run', *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert ' trainings' in done.stdout


def test_random_trainings_equal_stock() -> None:
    assert_like_stock('--seeds', '0:2')


@pytest.mark.slow
@pytest.mark.parametrize('first', range(100, 400, 20))
def test_many_random_trainings_equal_stock(first: int) -> None:
    assert_like_stock('--seeds', f'{first}:{first + 20}')


@pytest.mark.slow
@pytest.mark.parametrize('loop', ['iter', 'epoch'])
def test_resumes_in_all_directions_equal_stock(loop: str) -> None:
    case = dict(loop=loop, samples=16, val=2, save_best='acc', ema='plain', resume='stop', stop=4)
    assert_like_stock('--case', described(settled(case)), '--all-directions')


def is_needed(entry: Entry, scratch: Path) -> bool:
    """Return whether the example of an entry shows its difference."""
    case = settled(entry.example)
    found, *_ = run_case(case, scratch, directions=None if entry.leg or entry.on_resume else 0)
    return any(explained(one, case) is entry for one in found)


@pytest.mark.slow
@pytest.mark.parametrize('entry', ENTRIES)
def test_every_entry_is_needed(entry: Entry, scratch: Path) -> None:
    assert is_needed(entry, scratch), f'{entry.issue} {entry.reason}: fixed; remove the entry'


def test_bfloat16_entry_is_needed(scratch: Path) -> None:
    """Check one entry; `test_every_entry_is_needed` is slow."""
    entry = next(one for one in DOCUMENTED if 'bfloat16' in one.reason)
    assert is_needed(entry, scratch)


def test_case_is_a_function_of_its_seed() -> None:
    cases = [case_of(seed) for seed in range(300)]
    assert cases == [case_of(seed) for seed in range(300)]
    assert len({described(case) for case in cases}) > 290
    assert all(settled(case) == case for case in cases)
    assert all(eval(described(case)) == case for case in cases)


def test_cases_reach_every_value_of_every_axis() -> None:
    full = [completed(case_of(seed)) for seed in range(1500)]
    for name, (_, values) in ORDINARY.items():
        reached = [case[name] for case in full]
        for value in values:
            assert value in reached or name in ('epochs', 'stop', 'val'), (name, value)
    for name, value in RARE:
        assert any(
            value[0] in case['hooks'] if name == 'hooks' else case[name] == value for case in full
        ), (name, value)
    assert {name for case in full for name in case['hooks']} == set(MEDDLERS)
    assert set(ORDINARY) <= set(PLAIN)
    assert set(HOOKS) < set(MEDDLERS)


def change_weights(root: Path, seen: dict) -> None:
    seen['weights']['net.0.bias'] += 1


def lose_a_value(root: Path, seen: dict) -> None:
    seen['hub']['log_scalars'].pop('train/loss')


def lose_a_file(root: Path, seen: dict) -> None:
    (root / 'work/iter_4.pth').unlink()


def change_marker(root: Path, seen: dict) -> None:
    (root / 'work/last_checkpoint').write_text('elsewhere')


def change_learning_rate(root: Path, seen: dict) -> None:
    seen['lr']['lr'][0] *= 1.01


def change_row(root: Path, seen: dict) -> None:
    (path,) = root.rglob('scalars.json')
    path.write_text(path.read_text().replace('"loss"', '"lost"'))


def change_log(root: Path, seen: dict) -> None:
    (path,) = root.rglob('*.log')
    path.write_text(path.read_text().replace('Saving checkpoint', 'Skipping checkpoint'))


def change_checkpoint(root: Path, seen: dict) -> None:
    path = root / 'work/iter_8.pth'
    state = torch.load(path, weights_only=False)
    state['optimizer']['param_groups'][0]['lr'] = 7.0
    torch.save(state, path)


@pytest.mark.parametrize(
    ('damage', 'kind'),
    [
        (change_weights, 'weights'),
        (lose_a_value, 'hub.log_scalars.missing'),
        (lose_a_file, 'files.missing'),
        (change_marker, 'files.marker'),
        (change_learning_rate, 'lr'),
        (change_row, 'json.missing'),
        (change_log, 'log.missing'),
        (change_checkpoint, 'state.optimizer'),
    ],
)
def test_comparison_finds_each_kind_of_difference(damage: object, kind: str, scratch: Path) -> None:
    trainings = runs._Runs(dict(interval=4), scratch)
    stock, other = trainings.whole('stock'), trainings.whole('imported')
    assert compare(stock, other) == []
    seen = runs.observed(other)
    damage(other, seen)
    (other / 'observed').write_bytes(pickle.dumps(seen))
    assert kind in {one.kind for one in compare(stock, other)}


def test_page_of_differences_lists_every_entry() -> None:
    text = (ROOT / 'docs/en/different_from_stock.md').read_text(encoding='utf-8')
    page = ' '.join(text.split())  # lines are wrapped
    missing = [entry.reason for entry in DOCUMENTED if entry.reason not in page]
    assert not missing
