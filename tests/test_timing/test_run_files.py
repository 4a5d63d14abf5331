"""Files of a run stay readable however it ends."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from mmtempo.timing.run_files import LINES, SUMMARY, RunFiles, to_json
from tests.testing.common import fill


def record(folder: Path, messages: list[str] | None = None, **options: object) -> RunFiles:
    return RunFiles(str(folder), [].append if messages is None else messages.append, **options)  # type: ignore[arg-type]


def test_lines_of_several_runs_are_appended(tmp_path: Path) -> None:
    first = record(tmp_path)
    first.append([dict(a=1), dict(a=2)])
    first.append([])
    first.append([dict(a=3)])
    record(tmp_path).append([dict(a=4)])
    lines = (tmp_path / LINES).read_text().splitlines()
    assert [json.loads(line)['a'] for line in lines] == [1, 2, 3, 4]


def test_incomplete_line_does_not_damage_the_next(tmp_path: Path) -> None:
    (tmp_path / LINES).write_text('{"a":1}\n{"a":')
    record(tmp_path).append([dict(a=3)])
    assert (tmp_path / LINES).read_text() == '{"a":1}\n{"a":\n{"a":3}\n'


def test_summary_is_replaced_atomically_and_not_too_often(tmp_path: Path) -> None:
    now = 0.0
    one = record(tmp_path, at_least=10.0, clock=lambda: now)
    assert not one.is_due
    now = 10.0
    assert one.is_due
    one.summarise(dict(a=1))
    now = 19.0
    assert not one.is_due
    now = 20.0
    assert one.is_due
    one.summarise(dict(a=2))
    assert json.loads((tmp_path / SUMMARY).read_text()) == dict(a=2)
    assert os.listdir(tmp_path) == [SUMMARY]


def test_failures_are_reported_once_and_so_is_recovery(tmp_path: Path) -> None:
    messages: list[str] = []
    folder = tmp_path / 'missing'
    one = record(folder, messages)
    for number in range(3):
        one.append([dict(a=number), dict(b=number)])
        one.summarise(dict(a=number))
    assert len(messages) == 2
    for name, text in zip((LINES, SUMMARY), messages):
        assert text.startswith(f'{name}: cannot write {folder}/{name}')
        assert '(No such file or directory)' in text
    folder.mkdir()
    one.append([dict(a=3)])
    one.summarise(dict(a=3))
    assert messages[2:] == [
        f'{LINES}: written again; lines lost: 6',
        f'{SUMMARY}: written again',
    ]
    assert (folder / LINES).read_text() == '{"a":3}\n'
    assert json.loads((folder / SUMMARY).read_text()) == dict(a=3)


def test_full_disk_leaves_no_part_of_a_line(small_disk: Path) -> None:
    messages: list[str] = []
    one = record(small_disk, messages)
    one.append([dict(a=1)])
    one.summarise(dict(a=1))
    fill(small_disk)
    written = -1
    while not messages:  # the last page of the file has room for some lines
        one.append([dict(b='x' * 300), dict(c='x' * 300)])
        written += 1
    one.append([dict(a=2)])
    one.summarise(dict(a='x' * 9000))
    (small_disk / 'all').unlink()
    one.append([dict(a=3)])
    rows = [json.loads(line) for line in (small_disk / LINES).read_text().splitlines()]
    assert [key for row in rows for key in row] == ['a', *['b', 'c'] * written, 'a', 'a']
    assert [row['a'] for row in rows if 'a' in row] == [1, 2, 3]
    assert sorted(os.listdir(small_disk)) == [LINES, SUMMARY]
    assert json.loads((small_disk / SUMMARY).read_text()) == dict(a=1)
    assert f'{LINES}: written again; lines lost: 2' in messages


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (math.nan, 'null'),
        (np.float64(math.inf), 'null'),
        (0.123456789, '0.123457'),
        (1763500000.25, '1763500000.25'),
        (np.int64(7), '7'),
        (np.arange(3), '[0,1,2]'),
        ({1: (True, None, 'ä"')}, '{"1":[true,null,"\\u00e4\\""]}'),
        (Path('a'), '"a"'),
    ],
)
def test_json_is_standard(value: object, text: str) -> None:
    assert to_json(value) == text
