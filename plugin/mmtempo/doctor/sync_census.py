"""Count and locate operations that make the host wait for a device.

On a machine without a device one is imagined: results of operations count as device tensors,
data of the loader and Python numbers as host data. So a run on a CPU shows the synchronizations
that the same run would have on a GPU.

Limitation: without a device, ``tensor.to(torch.device('cpu'))`` of a result may be a copy to the
host or no copy at all, so it is not counted. ``.cpu()`` and ``.to('cpu')`` are.
"""

from __future__ import annotations

import os.path as osp
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from mmtempo.device.streams import current_device_index

SCALAR_READS = {'_local_scalar_dense', 'allclose', 'equal', 'is_nonzero'}
SHAPES_BY_VALUE = {
    '_unique2',
    'bincount',
    'masked_select',
    'nonzero',
    'repeat_interleave',
    'unique_consecutive',
    'unique_dim',
}
INDEXING = {'index', 'index_put', 'index_put_', '_index_put_impl_'}
TO_HOST = {torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__}
MOVES = {torch.Tensor.to, torch.Tensor.cuda}
FROM_PYTHON = {torch.tensor, torch.as_tensor}
SUBSCRIPTS = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
TORCH = osp.dirname(torch.__file__) + osp.sep


@dataclass(frozen=True)
class HostSync:
    """A synchronization of host and device.

    Attributes:
        kind: Why the host waits, for example 'scalar read'.
        operation: Name of the operation.
        where: File and line of the innermost call outside of torch.
    """

    kind: str
    operation: str
    where: str


class SyncCensus:
    """Context manager that records the synchronizations of this thread.

    Example::

        with SyncCensus() as census:
            census.mark_on_host(batch)
            train_step(batch)
        print(census.table())

    Attributes:
        host_syncs: Synchronizations that were seen at operators and calls.
        reported_by_cuda: Synchronizations that CUDA's debug mode reported; empty without CUDA.
    """

    def __init__(self) -> None:
        self.host_syncs: list[HostSync] = []
        self.reported_by_cuda: list[HostSync] = []
        self._imagined = current_device_index() is None
        self._reports = torch.cuda.is_available()
        self._host = WeakIdKeyDictionary()
        self._paused = False
        self._modes = (_Calls(self), _Operators(self))
        self._warnings = warnings.catch_warnings(record=True)
        self._caught: Any = None

    def __enter__(self) -> SyncCensus:
        if self._reports:
            self._caught = self._warnings.__enter__()
            warnings.simplefilter('always')
            torch.cuda.set_sync_debug_mode('warn')
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*error)
        if self._reports:
            torch.cuda.set_sync_debug_mode('default')
            self._warnings.__exit__(*error)
            self.reported_by_cuda += [
                HostSync('CUDA debug mode', 'synchronizes', f'{warning.filename}:{warning.lineno}')
                for warning in self._caught
                if 'synchroniz' in str(warning.message)
            ]

    @property
    def waits(self) -> list[HostSync]:
        """Former name of `host_syncs`; kept until 0.2."""
        return self.host_syncs

    def table(self) -> list[tuple[HostSync, int]]:
        """Return each synchronization and its count, the most frequent first."""
        return Counter([*self.host_syncs, *self.reported_by_cuda]).most_common()

    def mark_on_host(self, data: Any) -> None:
        """Declare the tensors in nested data to be on the host."""
        for leaf in tree_leaves(data):
            if isinstance(leaf, torch.Tensor):
                self._host[leaf] = True
            elif isinstance(leaf, list):  # a subclass of list that may hold a stacked tensor
                self.mark_on_host([list(leaf), dict(getattr(leaf, 'stacked', {}))])
            elif hasattr(leaf, 'values') and callable(leaf.values):  # data elements of mmengine
                self.mark_on_host(list(leaf.values()))

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on the host, or would be with a device."""
        return tensor in self._host if self._imagined else tensor.device.type == 'cpu'

    def record(self, kind: str, operation: str) -> None:
        """Record a synchronization at the current line."""
        where = _where()
        # Optimizers keep their step count on the host, which an imagined device cannot show.
        if not self._paused and not (self._imagined and where == 'host'):
            self.host_syncs.append(HostSync(kind, operation, where))

    def without_counting(self, work: Callable, *args: Any, **kwargs: Any) -> Any:
        """Call a function whose synchronization is recorded already, without counting again."""
        before, self._paused = self._paused, True
        try:
            return work(*args, **kwargs)
        finally:
            self._paused = before


def _where() -> str:
    """Return the innermost line outside of torch; 'host' for a step count read by torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name.startswith(TORCH) and frame.f_code.co_name == '_get_value':
            return 'host'
        if name != __file__ and not name.startswith(TORCH):
            break
        frame = frame.f_back
    return f'{frame.f_code.co_filename}:{frame.f_lineno}'


class _Operators(TorchDispatchMode):
    """Observer of operators, which sees results that are Python numbers and shapes from values."""

    def __init__(self, census: SyncCensus) -> None:
        super().__init__()
        self.census = census

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        on_host = bool(tensors) and all(self.census.is_on_host(tensor) for tensor in tensors)
        if not on_host:
            self._record(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if on_host:
            self.census.mark_on_host(result)
        return result

    def _record(self, func: Any, args: Any, kwargs: dict) -> None:
        name = func.name().split('::')[1].split('.')[0]
        if name in SCALAR_READS:
            self.census.record('scalar read', name.strip('_'))
        elif name in SHAPES_BY_VALUE:
            self.census.record('shape by value', name.strip('_'))
        elif name in INDEXING:
            masks = (torch.bool, torch.uint8)
            if any(index is not None and index.dtype in masks for index in args[1]):
                self.census.record('index by mask', name.strip('_'))
        elif name == '_to_copy' and not kwargs.get('non_blocking'):
            device = kwargs.get('device') or args[0].device
            if device.type != args[0].device.type:
                self.census.record('blocking copy', f'to {device}')


class _Calls(TorchFunctionMode):
    """Observer of calls, which sees copies and indices made from lists."""

    def __init__(self, census: SyncCensus) -> None:
        super().__init__()
        self.census = census

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        census = self.census
        if func in TO_HOST and not census.is_on_host(args[0]):
            census.record('copy to the host', func.__name__)
            return census.without_counting(func, *args, **kwargs)
        if func in MOVES and census._imagined:
            return self._move(func, args, kwargs)
        if func in SUBSCRIPTS and _has_list(args[1]):
            if census.is_on_host(args[0]):
                result = census.without_counting(func, *args, **kwargs)
                census.mark_on_host(result)
                return result
            census.record('index by list', func.__name__.strip('_'))
        if func is torch.Tensor.new_tensor and not census.is_on_host(args[0]):
            census.record('blocking copy', 'new_tensor')
        result = func(*args, **kwargs)
        if func in FROM_PYTHON and not isinstance(args[0], torch.Tensor):
            if kwargs.get('device') in (None, 'cpu'):
                census.mark_on_host(result)
            else:
                census.record('blocking copy', func.__name__)
        return result

    def _move(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call a function that moves a tensor, which does nothing on an imagined device."""
        census = self.census
        tensor, target = args[0], kwargs.get('device', args[1] if len(args) > 1 else None)
        if isinstance(target, torch.Tensor):
            target = target.device
        moves = func is torch.Tensor.cuda or isinstance(target, (str, int, torch.device))
        non_blocking = kwargs.get('non_blocking') or any(arg is True for arg in args[2:])
        result = census.without_counting(func, *args, **kwargs)
        if not moves:
            if census.is_on_host(tensor):
                census.mark_on_host(result)
        elif census.is_on_host(tensor):
            if not non_blocking:
                census.record('blocking copy', 'to the device')
            if result is tensor:
                result = census.without_counting(tensor.view_as, tensor)
            census._host.pop(result, None)
        elif target == 'cpu' and isinstance(target, str) and not non_blocking:
            census.record('copy to the host', "to('cpu')")
        return result


def _has_list(index: Any) -> bool:
    """Return whether an index must be converted to a tensor and copied to the device."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, (list, np.ndarray)) for part in parts)
