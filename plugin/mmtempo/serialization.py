"""Loads mm-style checkpoints in torch's safe mode, on both stacks.

From torch 2.6 on `torch.load` refuses every global that is not on an allow-list. A
checkpoint of mmengine holds its log history (`HistoryBuffer` with numpy arrays), so
mmengine 0.10.7 cannot resume from its own files there; onedl-mmengine retries what is
refused in unsafe mode, which runs whatever the file says. Our loader for local
files, registered with mmengine's `CheckpointLoader`, allows exactly what such a
file contains and refuses the rest.
"""

from __future__ import annotations

import os
import os.path as osp
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from torch.torch_version import TorchVersion

from .core.archive import check_archive

_STATISTICS = ('min', 'max', 'current', 'mean')


def _history_statistic(owner: Any, name: str) -> Any:
    """Stands in for `getattr`, which pickle uses to name HistoryBuffer's own methods."""
    if owner is not HistoryBuffer or name not in _STATISTICS:
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


def _allow() -> None:
    """Extend torch's allow-list; before torch 2.6 nothing is refused."""
    if torch.__version__ >= TorchVersion('2.6'):
        torch.serialization.add_safe_globals(safe_globals())


def load_from_local(filename: str, map_location: Any, check: bool = True, **kwargs: Any) -> Any:
    """mmengine's loader for local files, in safe mode; it shows the name after `load_from_`.

    Args:
        filename: Path of the checkpoint.
        map_location: As in `torch.load`.
        check: Whether to compare the checksums in the file. Defaults to True.
        kwargs: More for `torch.load`.
    """
    path = osp.expanduser(filename)
    if not osp.isfile(path):
        raise FileNotFoundError(f'checkpoint {path} does not exist')
    # What is no zip at all is of torch before 1.6, without checksums, or no checkpoint.
    broken = check_archive(path) if check and _is_zip(path) else None
    if broken is not None:
        raise ValueError(
            f'checkpoint {path} is broken: {broken}\nUse another one; --resume without a path '
            'takes the newest that is whole'
        )
    return load_safely(path, path, map_location, **kwargs)


def _is_zip(path: str) -> bool:
    with open(path, 'rb') as file:
        return file.read(4) == b'PK\x03\x04'


def load_safely(file: Any, name: str, map_location: Any, **kwargs: Any) -> Any:
    """`torch.load`, in safe mode.

    Args:
        file: Path, or a file that is open.
        name: What to call it in an error.
        map_location: As in `torch.load`.
        kwargs: More for `torch.load`.
    """
    _allow()  # each time: onedl's own loader takes them off the list again
    if not os.environ.get('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'):
        kwargs['weights_only'] = True  # before torch 2.6 it is not the default
    try:
        return torch.load(file, map_location=map_location, **kwargs)
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(
            f'checkpoint {name} cannot be read safely: {reason}\nA file that you trust is read '
            'with TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in the environment; it may run code'
        ) from error


def register_safe_loading() -> None:
    """Let every checkpoint that is named by a path go through `load_from_local`."""
    CheckpointLoader.register_scheme('', load_from_local, force=True)
    _allow()
