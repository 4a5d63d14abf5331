"""Room for what comes, and none for what a crash has left."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmtempo.core.disk_space import remove_leftovers, shortage
from mmtempo.core.writer_process import temporary_of


@pytest.mark.parametrize(
    ('size', 'files', 'missing'), [(10, 2, 0), (50, 2, 0), (50, 3, 50), (101, 1, 1)]
)
def test_shortage(size: int, files: int, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, 'disk_usage', lambda folder: SimpleNamespace(free=100))
    assert shortage('.', size, files) == missing


def test_nobody_knows(tmp_path: Path) -> None:
    assert shortage(str(tmp_path / 'gone'), 1 << 60, 1) == 0
    assert shortage(str(tmp_path), 1 << 60, 1) > 0


def test_only_ours_are_removed(tmp_path: Path) -> None:
    others = ['a.pth', '.hidden', 'a.mmtempo-tmp', '.a.pth.mmtempo-tmp.pth']
    for name in others:
        (tmp_path / name).touch()
    left = [temporary_of(str(tmp_path / name)) for name in ('b.pth', 'last_checkpoint')]
    for path in left:
        Path(path).touch()
    assert remove_leftovers(str(tmp_path)) == [os.path.basename(path) for path in left]
    assert sorted(os.listdir(tmp_path)) == sorted(others)
    assert remove_leftovers(str(tmp_path)) == []


def test_what_cannot_be_removed_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / '.a.mmtempo-tmp').touch()
    (tmp_path / '.b.mmtempo-tmp').mkdir()  # DeepSpeed saves folders
    (tmp_path / '.b.mmtempo-tmp/part').touch()

    def remove(path: str) -> None:
        raise PermissionError(path)

    monkeypatch.setattr(os, 'remove', remove)
    assert remove_leftovers(str(tmp_path)) == ['.b.mmtempo-tmp']
    assert os.listdir(tmp_path) == ['.a.mmtempo-tmp']
