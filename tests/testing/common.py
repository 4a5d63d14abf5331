"""Paths, names and options shared by all tests."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

_runs = itertools.count()
ROOT = Path(__file__).resolve().parents[2]
MINI = ROOT / 'configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py'
MULTICAM = ROOT / 'configs/lss_multicam/lss_multicam-mini_1xb4-300_synthetic-multicam.py'


def fill(disk: Path) -> None:
    """Fill a disk with a file named `all`."""
    with open(disk / 'all', 'wb', buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass


def next_name() -> str:
    """Return a new experiment name, which identifies the global logger and message hub."""
    return f'test{next(_runs)}'


def tiny_options(root: str, work_dir: object, iters: int = 4) -> dict:
    """Return overrides that shorten a training of the mini config to seconds."""
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
