"""Small real data, and configs over it."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported. Few cores and many short runs, several of them at a time under
# pytest-xdist: more threads only get into each other's way. And what is tested here is the CPU's
# path, also on a machine with a GPU.
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

_runs = itertools.count()
ROOT = Path(__file__).resolve().parents[1]
MINI = ROOT / 'configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py'
MULTICAM = ROOT / 'configs/lss_multicam/lss_multicam-mini_1xb4-300_synthetic-multicam.py'


@pytest.fixture(scope='session')
def bev_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight training and four validation images of 320 x 180. Read only."""
    root = str(tmp_path_factory.mktemp('data') / 'bev')
    for _ in write_dataset(root, dict(train=8, val=4), size=(320, 180), seed=1):
        pass
    return root


@pytest.fixture(scope='session')
def multicam_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five training and two validation samples of six 192 x 108 images. Read only."""
    root = str(tmp_path_factory.mktemp('data') / 'multicam')
    for _ in write_dataset(root, dict(train=5, val=2), size=(192, 108), seed=1, multicam=True):
        pass
    return root


@pytest.fixture
def own_bev_root(bev_root: str, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    import shutil

    return Path(shutil.copytree(bev_root, tmp_path / 'bev'))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB."""
    folder = tmp_path / 'small'
    folder.mkdir()
    mounted = subprocess.run(
        ['mount', '-t', 'tmpfs', '-o', 'size=400k', 'none', folder], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip('no file system may be mounted here')
    yield folder
    subprocess.run(['umount', '-l', folder], check=True)


def fill(disk: Path) -> None:
    """Take all room that is left, in a file `all`."""
    with open(disk / 'all', 'wb', buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def next_name() -> str:
    """Of an experiment; names loggers and message hubs, which live as long as the process does."""
    return f'test{next(_runs)}'


def tiny_options(root: str, work_dir: object, iters: int = 4) -> dict:
    """Overrides that make the mini config a matter of seconds."""
    options = {
        'work_dir': str(work_dir),
        'experiment_name': next_name(),
        'train_cfg.max_iters': iters,
        'train_cfg.val_interval': iters,
        'default_hooks.checkpoint.interval': 2,
        'default_hooks.logger.interval': 1,
        'model.decode_head.channels': 16,
        'model.decode_head.groups': 4,
        'model.decode_head.num_blocks': (1, 1),
        'model.view_transform.grid': dict(x=(-25.0, 25.0, 0.5), z=(1.0, 50.0, 0.5)),
        'train_dataloader.batch_size': 2,
    }
    for split in ('train', 'val', 'test'):
        options[f'{split}_dataloader.dataset.data_root'] = root
        options[f'{split}_dataloader.num_workers'] = 0
        options[f'{split}_dataloader.persistent_workers'] = False
    return options


@pytest.fixture
def tiny_cfg(bev_root: str, tmp_path: Path) -> Config:
    """The mini config over the small data, in a work dir of its own."""
    cfg = Config.fromfile(str(MINI))
    cfg.merge_from_dict(tiny_options(bev_root, tmp_path / 'work'))
    return cfg
