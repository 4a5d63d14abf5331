"""What figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from .stack import installed_versions


def machine() -> dict[str, Any]:
    """Processor, cores, versions; whatever is measured has to name them."""
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path('/proc/cpuinfo')
    if cpuinfo.is_file():
        models = [line for line in cpuinfo.read_text().splitlines() if 'model name' in line]
        cpu = models[0].partition(':')[2].strip() if models else cpu
    affinity = getattr(os, 'sched_getaffinity', None)
    return dict(
        cpu=cpu,
        cores=len(affinity(0)) if affinity else os.cpu_count(),
        torch_threads=torch.get_num_threads(),
        accelerator=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        system=platform.platform(),
        python=platform.python_version(),
        torch=torch.__version__,
        versions=installed_versions(),
    )
