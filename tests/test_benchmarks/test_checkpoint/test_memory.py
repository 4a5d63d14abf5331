"""The measured process saves between the two lines that it reads."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from mmtempo.benchmarks.checkpoint import memory
from mmtempo.benchmarks.checkpoint.arms import Shape


def test_process_saves_once_between_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    saved: list[int] = []

    class Lines(io.StringIO):
        def readline(self, *args: object) -> str:
            saved.append(len(list(tmp_path.rglob('*.pth'))))
            return '\n'

    monkeypatch.setattr(sys, 'argv', ['checkpoint_memory', 'ours', '3', str(tmp_path)])
    monkeypatch.setattr(sys, 'stdin', Lines())
    monkeypatch.setattr(memory, 'SHAPES', {'sleep': Shape(lambda: None)})
    memory.main()
    assert saved == [0, 1]
    ready, done = capsys.readouterr().out.splitlines()
    assert ready.startswith('ready ')
    (path,) = tmp_path.rglob('*.pth')
    assert 0.9 * path.stat().st_size < int(ready.split()[1]) < path.stat().st_size
    assert done == 'done'
