"""Describe the machine that figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from mmtempo.dependencies import installed_versions

from .limits import usable_cpus

# Variables in which launchers give the number of processes on this node.
LOCAL_SIZES = ('LOCAL_WORLD_SIZE', 'SLURM_NTASKS_PER_NODE')


def machine() -> dict[str, Any]:
    """Return processor, cores and versions, to be named with each measurement.

    Counts the cores that this process may use: a container often has fewer than its machine.
    """
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path('/proc/cpuinfo')
    if cpuinfo.is_file():
        models = [line for line in cpuinfo.read_text().splitlines() if 'model name' in line]
        cpu = models[0].partition(':')[2].strip() if models else cpu
    return dict(
        cpu=cpu,
        cores=max(1, int(usable_cpus().number)),
        torch_threads=torch.get_num_threads(),
        accelerator=accelerator(),
        system=platform.platform(),
        python=platform.python_version(),
        torch=torch.__version__,
        versions=installed_versions(),
    )


def accelerator() -> str | None:
    """Return the name of the current accelerator; None without one."""
    if not hasattr(torch, 'accelerator'):  # before torch 2.6
        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is None:
        return None
    name = getattr(getattr(torch, device.type, None), 'get_device_name', None)
    return device.type.upper() if name is None else name()


def processes_here(world: int) -> int:
    """Return how many processes of a training are on this node.

    Args:
        world: Number of all processes of the training.
    """
    for name in LOCAL_SIZES:
        if os.environ.get(name, '').isdigit():
            return max(1, min(world, int(os.environ[name])))
    devices = getattr(torch, 'accelerator', torch.cuda).device_count()  # before torch 2.6: CUDA's
    return min(world, devices or world)
