"""Sample caches in memory and in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.sample_caches import Caches, put_some


@pytest.fixture(params=['memory', 'folder'])
def caches(request: pytest.FixtureRequest, tmp_path: Path) -> Caches:
    folder = str(tmp_path / 'cache') if request.param == 'folder' else None
    return Caches(folder, str(tmp_path))


@pytest.fixture
def stored(tmp_path: Path) -> Caches:
    """Write four samples to a file that no process has open."""
    caches = Caches(str(tmp_path / 'cache'), 'stored')
    put_some(caches(), range(4))
    return caches
