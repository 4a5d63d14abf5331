"""Check that a config can run on this machine, and build its Runner."""

from __future__ import annotations

import os
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS, RUNNERS
from mmengine.runner import Runner

from mmtempo.checkpoint.loading import register_safe_downloads
from mmtempo.checkpoint.resume import newest_of, out_dirs_of
from mmtempo.device.streams import cpu_has_bfloat16
from mmtempo.policies import KEY
from mmtempo.policies.drop_in import optim_wrapper_class
from mmtempo.system.folder_lock import FolderInUseError, FolderLock

from .run import LaunchError, print_message, print_once

# Environment variables that a process needs from its launcher.
LAUNCHER_NEEDS = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'MASTER_ADDR'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_NODELIST'),
    'mpi': ('OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_SIZE', 'MASTER_ADDR'),
}


def has_accelerator() -> bool:
    """Return whether mmengine would train on a device other than the CPU."""
    return get_device() != 'cpu'


def check_device(cfg: Config, training: bool) -> None:
    """Raise if the launcher or the precision of a config cannot work on this machine.

    Args:
        cfg: The config, complete.
        training: Whether the config is for training rather than testing.
    """
    missing = [name for name in LAUNCHER_NEEDS.get(cfg.launcher, ()) if name not in os.environ]
    if missing:
        raise LaunchError(
            f'--launcher {cfg.launcher}: {", ".join(missing)} not set; start it with '
            'tools/dist_train.sh or tools/slurm_train.sh, or leave --launcher out'
        )
    if has_accelerator():
        return
    gpu = (
        f'needs a GPU, and torch {torch.__version__} finds none (with a GPU in the machine, '
        'check `nvidia-smi` and install a CUDA build of torch)'
    )
    if cfg.launcher in ('slurm', 'mpi'):
        raise LaunchError(f'--launcher {cfg.launcher} {gpu}')
    if training and optim_wrapper_class(cfg) is AmpOptimWrapper:
        raise LaunchError(
            f'mixed precision with AmpOptimWrapper {gpu}; train.py --zero-wait, or --cfg-options '
            'optim_wrapper.type=SparseAmpOptimWrapper, computes in bfloat16 on a CPU'
        )


def prefer_float32_on_cpu(cfg: Config) -> None:
    """Replace the mixed precision of a policy by float32 where a CPU would emulate bfloat16.

    Emulation is many times slower than float32. A config with `optim_wrapper.dtype`, or without a
    policy, is left as it is.

    Args:
        cfg: The config of a training; it is changed.
    """
    wrapper: Any = cfg.get('optim_wrapper') or {}
    if has_accelerator() or KEY not in cfg or wrapper.get('dtype') is not None:
        return
    if cpu_has_bfloat16() is not False:
        return
    if optim_wrapper_class(cfg) is OPTIM_WRAPPERS.get('SparseAmpOptimWrapper'):
        wrapper.type = 'SparseOptimWrapper'
        wrapper.pop('loss_scale', None)
        print_once(
            'optim_wrapper.type: SparseAmpOptimWrapper -> SparseOptimWrapper (float32), since '
            'this CPU has no bfloat16; set optim_wrapper.dtype=bfloat16 to emulate it'
        )


def set_resume(cfg: Config, resume: str | None) -> None:
    """Apply --resume.

    Args:
        cfg: The config; it is changed.
        resume: 'auto' for the newest checkpoint of the work dir, the path of a checkpoint, or None
            for a new training.
    """
    if resume is None:
        return
    cfg.resume = True
    if resume != 'auto':
        cfg.load_from = resume
        return
    cfg.load_from = None
    newest, problems = newest_of(cfg)
    if problems and newest is not None:
        print_once('\n'.join(f'--resume: skipping a checkpoint: {problem}' for problem in problems))
        print_once(f'--resume: using {newest}, the newest checkpoint that is whole')
        cfg.load_from = newest


def lock_folders(cfg: Config) -> FolderLock:
    """Lock the folders that a training writes into, in the first of its processes.

    Call it before the Runner is built: its constructor writes the log and the config.
    """
    rank = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK').get(cfg.launcher)
    if rank is not None and os.environ.get(rank, '0') != '0':
        return FolderLock([])
    try:
        lock = FolderLock([cfg.work_dir, *out_dirs_of(cfg)])
    except FolderInUseError as error:
        raise LaunchError(str(error)) from error
    for problem in lock.problems:
        print_message(problem)
    return lock


def build_runner(cfg: Config) -> Runner:
    """Build the stock Runner, or the one that `runner_type` names."""
    register_safe_downloads()  # a model may download its weights while it is built
    if cfg.launcher == 'pytorch' and not has_accelerator():
        _join_over_gloo(cfg)
    if 'runner_type' not in cfg:
        return Runner.from_cfg(cfg)
    return RUNNERS.build(cfg)


def _join_over_gloo(cfg: Config) -> None:
    """Initialize distributed training over gloo, for processes without GPUs.

    mmengine cannot do it: it sets a CUDA device before it joins, and passes one to the wrapper of
    the model.
    """
    print_message('no GPU found: processes communicate over gloo, SyncBN is built as BN')
    torch.distributed.init_process_group('gloo')
    _replace_sync_bn(cfg._cfg_dict.model)
    cfg.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel',
        device_ids=None,
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    ) | (cfg.get('model_wrapper_cfg') or {})


def _replace_sync_bn(node: Any) -> None:
    """Replace SyncBN, which works on GPUs only, by BN in the config of a model."""
    if isinstance(node, dict):
        if node.get('type') == 'SyncBN':
            node['type'] = 'BN'
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            _replace_sync_bn(child)
