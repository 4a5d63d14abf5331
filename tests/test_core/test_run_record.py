"""What is written of a run is legible, however it ends."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from mmtempo.core.run_record import LINES, SUMMARY, RunRecord, to_json


def record(folder: Path, said: list[str] | None = None, **options: object) -> RunRecord:
    return RunRecord(str(folder), [].append if said is None else said.append, **options)  # type: ignore[arg-type]


def test_lines_are_appended_by_run_after_run(tmp_path: Path) -> None:
    first = record(tmp_path)
    first.append([dict(a=1), dict(a=2)])
    first.append([])
    first.append([dict(a=3)])
    record(tmp_path).append([dict(a=4)])
    lines = (tmp_path / LINES).read_text().splitlines()
    assert [json.loads(line)['a'] for line in lines] == [1, 2, 3, 4]


def test_a_line_that_was_cut_does_not_spoil_the_next(tmp_path: Path) -> None:
    (tmp_path / LINES).write_text('{"a":1}\n{"a":')
    record(tmp_path).append([dict(a=3)])
    assert (tmp_path / LINES).read_text() == '{"a":1}\n{"a":\n{"a":3}\n'


def test_the_summary_is_replaced_as_a_whole(tmp_path: Path) -> None:
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


def test_what_cannot_be_written_is_said_once(tmp_path: Path) -> None:
    said: list[str] = []
    one = record(tmp_path / 'missing', said)
    for _ in range(3):
        one.append([dict(a=1)])
        one.summarise(dict(a=1))
    assert len(said) == 1
    assert 'tempo.jsonl cannot be written (No such file or directory)' in said[0]


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
def test_json_that_any_reader_takes(value: object, text: str) -> None:
    assert to_json(value) == text
