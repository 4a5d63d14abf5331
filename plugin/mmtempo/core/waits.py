"""Counts, on the CPU, the operations that would make the host wait for a device."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Their result is a Python number, or a shape that depends on values.
WAITING = {
    'aten._local_scalar_dense',
    'aten._unique2',
    'aten.allclose',
    'aten.bincount',
    'aten.equal',
    'aten.masked_select',
    'aten.nonzero',
    'aten.repeat_interleave',
    'aten.unique_consecutive',
    'aten.unique_dim',
}


class WaitCounter(TorchDispatchMode):
    """Names of waiting operations, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().replace('::', '.').split('.')
        name = '.'.join(name[:2])
        if name in WAITING:
            self.waits.append(name)
        if name in ('aten.index', 'aten.index_put', 'aten.index_put_'):
            indices = [i for i in args[1] if i is not None]
            if any(i.dtype in (torch.bool, torch.uint8) for i in indices):
                self.waits.append(f'{name} by mask')
        return func(*args, **(kwargs or {}))
