"""The measured process holds a full cache and its workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmtempo.benchmarks import process_memory
from mmtempo.benchmarks.loader import holder


@pytest.mark.skipif(not Path('/proc/self/stat').exists(), reason='needs /proc/PID/stat')
def test_process_has_a_full_cache_and_its_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    counts: list[int] = []
    before = set(process_memory.family_of(os.getpid()))  # other tests' processes may end meanwhile

    def readline() -> str:
        counts.append(len(set(process_memory.family_of(os.getpid())) - before))
        return '\n'

    monkeypatch.setattr(holder, 'SHAPE', (60, 80))
    monkeypatch.setattr(holder, 'REST', 0)
    monkeypatch.setattr(holder, 'SPARE', 1.2)  # heads are a larger share of small samples
    # More samples than are prefetched.
    size = 60 * 4 * 60 * 80
    monkeypatch.setattr(sys, 'argv', ['loader_holder', str(size), '1', '2'])
    monkeypatch.setattr(sys, 'stdin', SimpleNamespace(readline=readline, close=lambda: None))
    holder.main()
    assert counts == [1, 2]
    ready = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in ready] == [['ready', '1'], ['ready', '2']]
    assert all(size <= int(line[2]) < 1.2 * size for line in ready)
