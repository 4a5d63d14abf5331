"""Nested state as in checkpoints, and its comparison."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmtempo.checkpoint.io.archive import records_of
from mmtempo.checkpoint.io.host_buffer import HostBuffer
from mmtempo.checkpoint.io.snapshot import Snapshot
from mmtempo.checkpoint.io.writer_process import _open, write_archive


class History:
    """Object with arrays that changes during the training, as a HistoryBuffer does."""

    def __init__(self) -> None:
        self.values = np.arange(4.0)
        self.windows = {'loss': [1, 2]}


def tensors() -> dict[str, torch.Tensor]:
    """Return different tensors of all dtypes and layouts."""
    torch.manual_seed(0)
    weight = torch.randn(4, 3, 5, 2)
    return {
        'plain': torch.randn(7, 3),
        'channels_last': weight.to(memory_format=torch.channels_last),
        'transposed': torch.randn(3, 8).t(),
        'expanded': torch.randn(1, 4).expand(3, 4),
        'sliced': torch.randn(9, 9)[1:5, ::2],
        'one_long': torch.randn(6, 1, 3).transpose(0, 1),
        'bf16': torch.randn(5).bfloat16(),
        'half': torch.randn(5).half(),
        'double': torch.tensor([float('nan'), -0.0, float('inf')], dtype=torch.float64),
        'complex': torch.randn(3, dtype=torch.complex64),
        'bool': torch.tensor([True, False, True]),
        'int': torch.arange(-3, 9),
        'byte': torch.arange(200, dtype=torch.uint8),
        'scalar': torch.tensor(2.5),
        'empty': torch.empty(0, 4),
        'grad': torch.randn(3, requires_grad=True),
    }


def tree() -> dict[str, Any]:
    """Return nested containers with tensors, tied ones and other values."""
    state = OrderedDict(tensors())
    state['tied'] = state['plain']
    state._metadata = OrderedDict({'': {'version': 2}})  # type: ignore[attr-defined]
    return dict(
        meta=dict(iter=3, name='x', seed=None, size=torch.Size([2]), kind=torch.bfloat16),
        state_dict=state,
        optimizer=dict(param_groups=[dict(lr=0.1, betas=(0.9, 0.99), params=[0, 1])]),
        counter=Counter(a=3),
    )


def same(one: Any, other: Any) -> bool:
    """Return whether two trees are bit-equal, with equal types and order."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        kinds = [(each.dtype, each.shape, each.device, each.layout) for each in (one, other)]
        return kinds[0] == kinds[1] and bits(one) == bits(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    return same(vars(one), vars(other)) if isinstance(one, History) else one == other


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def write(path: Path | str, content: Any) -> None:
    """Write a checkpoint through a snapshot, in this process instead of the writing process."""
    area = HostBuffer()
    snapshot = Snapshot(area)
    [frozen] = snapshot.take([content])
    snapshot.finish()
    address = area.address
    with open(path, 'wb') as file:
        write_archive(file, records_of(frozen, area), _open(address and address[0]))
    area.close()
