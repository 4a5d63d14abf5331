"""Lets torch's safe loader read mm-style checkpoints.

From torch 2.6 on `torch.load` refuses every global that is not on an
allow-list. A checkpoint of mmengine holds its log history (`HistoryBuffer` with
numpy arrays), so mmengine 0.10.7 cannot resume from its own files there.
`register_safe_globals` puts exactly what such a file contains on the list;
loading stays in `weights_only` mode and executes nothing of the file's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from torch.torch_version import TorchVersion

_STATISTICS = ('min', 'max', 'current', 'mean')


def _history_statistic(owner: Any, name: str) -> Any:
    """Stands in for `getattr`, which pickle uses to name HistoryBuffer's own methods."""
    if owner is not HistoryBuffer or name not in _STATISTICS:
        # No UnpicklingError: onedl's loader answers that one with an unsafe retry.
        raise ValueError(
            f'the checkpoint asks for attribute {name!r} of {owner!r}; only '
            f'HistoryBuffer.{{{", ".join(_STATISTICS)}}} may be read from a checkpoint'
        )
    return getattr(HistoryBuffer, name)


def safe_globals() -> list[Any]:
    """Everything beyond torch's own list that a mmengine checkpoint may name."""
    # numpy 2 moved its core; files of either version must load under either.
    core = np._core if hasattr(np, '_core') else np.core
    allowed: list[Any] = [
        HistoryBuffer,
        np.ndarray,
        np.dtype,
        (_history_statistic, 'builtins.getattr'),
    ]
    for function in ('_reconstruct', 'scalar'):
        for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
            allowed.append((getattr(core.multiarray, function), f'{module}.{function}'))
    kinds = ('bool', 'uint8', 'int16', 'int32', 'int64', 'float16', 'float32', 'float64')
    allowed += [type(np.dtype(kind)) for kind in kinds]
    return allowed


def register_safe_globals() -> None:
    """Extend torch's allow-list; nothing to do before torch 2.6, which does not refuse."""
    if torch.__version__ >= TorchVersion('2.6'):
        torch.serialization.add_safe_globals(safe_globals())
