"""Loads mm-style checkpoints in torch's safe mode, on both stacks.

From torch 2.6 on `torch.load` refuses every global that is not on an allow-list. A
checkpoint of mmengine holds its log history (`HistoryBuffer` with numpy arrays), so
mmengine 0.10.7 cannot resume from its own files there; onedl-mmengine retries what is
refused in unsafe mode, which runs whatever the file says. Our loader for local
files, registered with mmengine's `CheckpointLoader`, allows exactly what such a
file contains (`safe_types`) and refuses the rest.
"""

from __future__ import annotations

import io
import os
import os.path as osp
import re
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from mmengine.runner import CheckpointLoader
from torch.torch_version import TorchVersion

from mmtempo.checkpoint.io.archive import check_archive

from .safe_types import resolve, safe_globals

UNSAFE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
# torch has an allow-list, and refuses what is not on it.
OUT_OF_MEMORY = getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError)
HAS_ALLOW_LIST = torch.__version__ >= TorchVersion('2.6')
REFUSED = re.compile(r'GLOBAL (\S+)')
COLOURS = re.compile(r'\x1b\[\d*m')
# In every checkpoint, and allowed by torch itself.
ORDINARY = re.compile(
    r'collections\.OrderedDict|_codecs\.encode|builtins\.set|torch\.\w+Storage'
    r'|torch\._utils\._rebuild_(tensor_v2|parameter)|torch\.storage\.\w+|torch\.(float|int|bool)\d*'
)
# The allow-list is one for the process.
_list_in_use = threading.RLock()


class UnreadableCheckpointError(ValueError):
    """A checkpoint that the user has named cannot be read; the message says what to do."""


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
        raise UnreadableCheckpointError(
            f'checkpoint {path} is broken: {broken}; use another one (--resume without a path '
            'takes the newest that is whole)'
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
    is_trusted = os.environ.get(UNSAFE, '').lower() in ('1', 'y', 'yes', 'true')  # as torch
    try:
        if is_trusted:
            return torch.load(file, map_location=map_location, **kwargs)
        with _allowed():
            # Before torch 2.6 it is not the default.
            loaded = torch.load(file, map_location=map_location, weights_only=True, **kwargs)
        return resolve(loaded)
    except (MemoryError, OSError, OUT_OF_MEMORY):
        raise  # of the machine, not of the file
    except Exception as error:
        raise UnreadableCheckpointError(
            f'checkpoint {name} cannot be read safely: {_reason(file, error)}. If you trust the '
            f'file, set {UNSAFE}=1 in the environment; whatever code is in it will run'
        ) from error


def why_refused(path: str, named: Collection[str]) -> str | None:
    """Return why a checkpoint that was just saved cannot be loaded again; None where it can.

    Args:
        path: The file.
        named: What `core.archive.names_in` has found in it. Where all of that is allowed, the
            file is not read.
    """
    known = {name for _, name in safe_globals()}
    # Protocol 2 writes the names of Python 2.
    named = [name.replace('__builtin__.', 'builtins.') for name in named]
    if not HAS_ALLOW_LIST or all(n in known or ORDINARY.fullmatch(n) for n in named):
        return None
    try:
        load_from_local(path, 'cpu', mmap=True, check=False)
    except UnreadableCheckpointError as error:
        return str(error)
    except OSError:  # it has been removed
        return None
    return None


def register_safe_loading() -> None:
    """Let every checkpoint that is named by a path go through `load_from_local`."""
    CheckpointLoader.register_scheme('', load_from_local, force=True)


@contextmanager
def _allowed() -> Iterator[None]:
    """Put our stand-ins on torch's allow-list, in the place of the types they stand in for."""
    if not HAS_ALLOW_LIST:
        yield
        return
    listed = torch.serialization
    with _list_in_use:
        before = listed.get_safe_globals()
        ours = safe_globals()
        names = {name for _, name in ours}
        # What a user allows stays allowed, but no real array or dtype is given its state.
        kept = [entry for entry in before if not _clashes(entry, names)]
        listed.clear_safe_globals()
        listed.add_safe_globals([*kept, *ours])
        try:
            yield
        finally:
            listed.clear_safe_globals()
            listed.add_safe_globals(before)


def _clashes(entry: Any, names: Collection[str]) -> bool:
    """Whether an entry of torch's allow-list has one of the names, or is a type of numpy's."""
    kind, name = entry if isinstance(entry, tuple) else (entry, None)
    if isinstance(kind, type) and issubclass(kind, (np.ndarray, np.dtype)):
        return True
    return (name or f'{kind.__module__}.{kind.__qualname__}') in names


def _reason(file: Any, error: Exception) -> str:
    """What a checkpoint is refused for, in one line."""
    text = COLOURS.sub('', str(error)).strip()
    found = REFUSED.search(text)
    if found is None:
        *_, text = text.split('WeightsUnpickler error:')
        lines = (text.strip() or type(error).__name__).splitlines()
        return lines[0].rstrip('.')
    names = [found[1]]
    if HAS_ALLOW_LIST:
        if isinstance(file, io.IOBase):
            file.seek(0)
        # It reads neither files of torch before 1.6 nor some that were made to break it.
        with _allowed(), suppress(Exception):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(file) or names
    listed = ', '.join(sorted(names))
    return (
        f'it names {listed}, which mmtempo does not load; allow what you trust with '
        f'torch.serialization.add_safe_globals([{listed}]) in a module of custom_imports'
    )
