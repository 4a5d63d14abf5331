"""Fixtures of small real data and of configs that use it."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported: short runs on few cores, parallel under pytest-xdist, are slower with
# more threads. GPUs are hidden, since these tests cover the path on the CPU.
os.environ.setdefault('OMP_NUM_THREADS', '1' if 'PYTEST_XDIST_WORKER' in os.environ else '2')
os.environ['CUDA_VISIBLE_DEVICES'] = ''

import pytest

# Stock packages warn at import; ours must not (see pyproject.toml).
with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    import mmseg.models  # noqa: F401

from mmengine.config import Config

import mmtempo  # noqa: F401
from mmtempo.workloads.bev.synthetic import write_dataset
from tests.testing.common import MINI, tiny_options


@pytest.fixture(scope='session')
def bev_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the root of 8 training and 4 validation images of 320 x 180; read-only."""
    root = str(tmp_path_factory.mktemp('data') / 'bev')
    for _ in write_dataset(root, dict(train=8, val=4), size=(320, 180), seed=1):
        pass
    return root


@pytest.fixture(scope='session')
def multicam_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the root of 5 training and 2 validation samples of six images; read-only."""
    root = str(tmp_path_factory.mktemp('data') / 'multicam')
    for _ in write_dataset(root, dict(train=5, val=2), size=(192, 108), seed=1, multicam=True):
        pass
    return root


@pytest.fixture
def own_bev_root(bev_root: str, tmp_path: Path) -> Path:
    """Return a copy of the dataset that a test may damage."""
    import shutil

    return Path(shutil.copytree(bev_root, tmp_path / 'bev'))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 400 KiB and return its folder."""
    folder = tmp_path / 'small'
    folder.mkdir()
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=400k', 'none', folder], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip('file systems cannot be mounted here')
    yield folder
    subprocess.run(['umount', '-l', folder], check=True)


@pytest.fixture
def tiny_cfg(bev_root: str, tmp_path: Path) -> Config:
    """Return the mini config with the small dataset and a temporary work dir."""
    cfg = Config.fromfile(str(MINI))
    cfg.merge_from_dict(tiny_options(bev_root, tmp_path / 'work'))
    return cfg
