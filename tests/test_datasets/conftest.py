"""Folders of the tests of caches."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the folder of the caches' lock files to one of the test."""
    (tmp_path / 'tmp').mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path / 'tmp'))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """Return a folder with the six files of `Numbers`."""
    (tmp_path / 'data').mkdir()
    for number in range(6):
        (tmp_path / 'data' / f'{number}.bin').write_bytes(bytes([number + 1, 7]))
    return str(tmp_path / 'data')
