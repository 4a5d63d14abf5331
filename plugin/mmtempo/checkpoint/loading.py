"""Load mm-style checkpoints in torch's safe mode, from files, URLs and model zoos.

Since torch 2.6, `torch.load` refuses every global that is not on an allow-list. A checkpoint of
mmengine contains its log history (`HistoryBuffer` with numpy arrays), so mmengine 0.10.7 cannot
resume from its own files there; onedl-mmengine retries a refused file in unsafe mode, which runs
any code in it. The loader for local files below allows exactly what such a file contains
(`safe_types`) and refuses the rest. `import mmtempo` registers it with mmengine's
`CheckpointLoader`.

mmengine's loaders for URLs and model zoos call `torch.load` with `weights_only=False` on both
stacks, so code from the server runs. The loaders below replace them where a tool, a loop or a hook
of mmtempo is used; a program that only imports mmtempo keeps mmengine's.
"""

from __future__ import annotations

import io
import os
import os.path as osp
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.dist import get_dist_info
from mmengine.fileio import get_file_backend
from mmengine.runner import CheckpointLoader
from mmengine.runner.checkpoint import (
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)
from torch.torch_version import TorchVersion

from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.utils.suggest import did_you_mean

from .safe_types import resolve, safe_globals

UNSAFE = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
OUT_OF_MEMORY = getattr(torch, 'OutOfMemoryError', torch.cuda.OutOfMemoryError)
# Older versions have no allow-list that refuses all other globals.
HAS_ALLOW_LIST = torch.__version__ >= TorchVersion('2.6')
REFUSED = re.compile(r'GLOBAL (\S+)')
COLOURS = re.compile(r'\x1b\[\d*m')
# Globals in every checkpoint, which torch itself allows.
ORDINARY = re.compile(
    r'collections\.OrderedDict|_codecs\.encode|builtins\.set|torch\.\w+Storage'
    r'|torch\._utils\._rebuild_(tensor_v2|parameter)|torch\.storage\.\w+|torch\.(float|int|bool)\d*'
)
ZOOS: dict[tuple[str, ...], Callable[[], dict[str, str]]] = {
    ('torchvision://', 'modelzoo://'): get_torchvision_models,
    ('openmmlab://', 'open-mmlab://'): get_external_models,
}
# The allow-list is global to the process.
_list_in_use = threading.RLock()


class UnreadableCheckpointError(ValueError):
    """A checkpoint that the user named cannot be read; the message says what to do."""


class DownloadError(UnreadableCheckpointError, OSError):
    """A checkpoint could not be downloaded."""


def register_safe_loading() -> None:
    """Load every checkpoint that is named by a path with `load_from_local`."""
    CheckpointLoader.register_scheme('', load_from_local, force=True)


def register_safe_downloads() -> None:
    """Load checkpoints that are named by a URL or in a model zoo with the loaders below."""
    CheckpointLoader.register_scheme(('http://', 'https://'), load_from_http, force=True)
    CheckpointLoader.register_scheme('mmcls://', load_from_mmcls, force=True)
    stores = [r'(\S+\:)?s3://', r'(\S+\:)?petrel://']
    CheckpointLoader.register_scheme(stores, load_from_store, force=True)
    for schemes in ZOOS:
        CheckpointLoader.register_scheme(schemes, load_from_zoo, force=True)


# mmengine logs the name of a loader without `load_from_`, so the names below follow its own.
def load_from_local(filename: str, map_location: Any, check: bool = True, **kwargs: Any) -> Any:
    """Load a local file in safe mode.

    Args:
        filename: Path of the checkpoint.
        map_location: As in `torch.load`.
        check: Whether to verify the checksums of the file. Defaults to True.
        kwargs: Other arguments of `torch.load`.
    """
    path = osp.expanduser(filename)
    if not osp.isfile(path):
        raise FileNotFoundError(f'checkpoint {path} does not exist')
    # A file that is not a zip is from torch before 1.6, which has no checksums, or no checkpoint.
    broken = check_archive(path) if check and _is_zip(path) else None
    if broken is not None:
        raise UnreadableCheckpointError(
            f'checkpoint {path} is broken: {broken}; use another one (--resume without a path '
            'takes the newest that is whole)'
        )
    return load_safely(path, path, map_location, **kwargs)


def load_from_http(filename: str, map_location: Any = None) -> Any:
    """Download a file into torch's cache unless it is there, as stock does, and load it safely.

    Args:
        filename: URL of the checkpoint.
        map_location: As in `torch.load`. Defaults to None.
    """
    folder = osp.join(torch.hub.get_dir(), 'checkpoints')
    name = osp.basename(urlparse(filename).path)
    if not name:
        raise UnreadableCheckpointError(
            f'checkpoint {filename}: found a URL without a file name; expected one that ends with '
            'the name of the checkpoint'
        )
    path = osp.join(folder, name)
    rank, world_size = get_dist_info()
    if rank == 0:
        _download(filename, path)
    if world_size > 1:
        torch.distributed.barrier()
        _download(filename, path)  # on machines that do not share the cache
    try:
        return load_from_local(path, map_location)
    except UnreadableCheckpointError as error:
        raise UnreadableCheckpointError(f'{error} (downloaded from {filename})') from error


def load_from_zoo(filename: str, map_location: Any = None) -> Any:
    """Load a model that is named in one of mmengine's lists of models.

    Args:
        filename: Scheme and name, as 'torchvision://resnet50'.
        map_location: As in `torch.load`. Defaults to None.
    """
    scheme, _, name = filename.partition('://')
    find = next(find for schemes, find in ZOOS.items() if f'{scheme}://' in schemes)
    try:
        urls = find()
    except ModuleNotFoundError as error:
        raise UnreadableCheckpointError(
            f'checkpoint {filename}: the list of models is in {error.name}, which is not '
            'installed; install it, or use a file or a URL'
        ) from error
    name = get_deprecated_model_names().get(name, name)
    if name not in urls:
        raise UnreadableCheckpointError(
            f'checkpoint {filename}: {scheme} has no model {name!r}; use a name of its list, a '
            f'file or a URL{did_you_mean(name, urls)}'
        )
    url = urls[name]
    if urlparse(url).scheme in ('http', 'https'):
        return load_from_http(url, map_location)
    # A few entries are paths of files that users place there themselves.
    cache = osp.join(os.environ.get('XDG_CACHE_HOME', '~/.cache'), 'mmengine')
    home = osp.expanduser(os.environ.get('MMENGINE_HOME', cache))
    return load_from_local(osp.join(home, url), map_location)


def load_from_mmcls(filename: str, map_location: Any = None) -> Any:
    """Load the backbone of a model of mmcls.

    Args:
        filename: Scheme and name, as 'mmcls://mobilenet_v2'.
        map_location: As in `torch.load`. Defaults to None.
    """
    urls, name = get_mmcls_models(), filename.partition('://')[2]
    if name not in urls:
        raise UnreadableCheckpointError(
            f'checkpoint {filename}: mmcls has no model {name!r}; use a name of its list, a file '
            f'or a URL{did_you_mean(name, urls)}'
        )
    checkpoint = load_from_http(urls[name], map_location)
    state = checkpoint.get('state_dict', checkpoint)
    prefix = 'backbone.'
    return dict(
        state_dict=OrderedDict(
            (key[len(prefix) :], value) for key, value in state.items() if key.startswith(prefix)
        )
    )


def load_from_store(filename: str, map_location: Any = None) -> Any:
    """Load a file of an object store through mmengine's backend.

    Args:
        filename: URL of the checkpoint.
        map_location: As in `torch.load`. Defaults to None.
    """
    backend = get_file_backend(filename, backend_args={'backend': 'petrel'})
    with io.BytesIO(backend.get(filename)) as file:
        return load_safely(file, filename, map_location)


def load_safely(file: Any, name: str, map_location: Any, **kwargs: Any) -> Any:
    """Call `torch.load` in safe mode.

    Args:
        file: Path or open file.
        name: Name of the checkpoint in errors.
        map_location: As in `torch.load`.
        kwargs: Other arguments of `torch.load`.
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
        raise  # a failure of the machine, not of the file
    except Exception as error:
        raise UnreadableCheckpointError(
            f'checkpoint {name} cannot be read safely: {_reason(file, error)}. If you trust the '
            f'file, set {UNSAFE}=1 in the environment; any code in the file will then run'
        ) from error


def why_refused(path: str, named: Collection[str]) -> str | None:
    """Return why a checkpoint that was just saved cannot be loaded again, or None if it can.

    Args:
        path: Path of the checkpoint.
        named: Globals that `checkpoint.io.archive.names_in` found in the file. Where all of them
            are allowed, the file is not read.
    """
    allowed = {name for _, name in safe_globals()}
    # Protocol 2 writes the module names of Python 2.
    named = [name.replace('__builtin__.', 'builtins.') for name in named]
    if not HAS_ALLOW_LIST or all(n in allowed or ORDINARY.fullmatch(n) for n in named):
        return None
    try:
        load_from_local(path, 'cpu', mmap=True, check=False)
    except UnreadableCheckpointError as error:
        return str(error)
    except OSError:  # it has been removed
        return None
    return None


def _is_zip(path: str) -> bool:
    with open(path, 'rb') as file:
        return file.read(4) == b'PK\x03\x04'


def _download(url: str, path: str) -> None:
    if osp.exists(path):
        return
    os.makedirs(osp.dirname(path), exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, path, progress=os.isatty(2))
    except (OSError, HTTPException, ValueError) as error:  # ValueError: no host in the URL
        raise DownloadError(
            f'checkpoint {url} could not be downloaded: {error}; check the URL, or download it '
            'yourself and use the path of the file'
        ) from error


@contextmanager
def _allowed() -> Iterator[None]:
    """Put the stand-ins on torch's allow-list, in place of the types that they represent."""
    if not HAS_ALLOW_LIST:
        yield
        return
    listed = torch.serialization
    with _list_in_use:
        before = listed.get_safe_globals()
        ours = safe_globals()
        names = {name for _, name in ours}
        # Types that a user allows stay allowed, but no real array or dtype receives a state.
        kept = [entry for entry in before if not _clashes(entry, names)]
        listed.clear_safe_globals()
        listed.add_safe_globals([*kept, *ours])
        try:
            yield
        finally:
            listed.clear_safe_globals()
            listed.add_safe_globals(before)


def _clashes(entry: Any, names: Collection[str]) -> bool:
    """Return whether an entry of torch's allow-list has one of the names or is a numpy type."""
    kind, name = entry if isinstance(entry, tuple) else (entry, None)
    if isinstance(kind, type) and issubclass(kind, (np.ndarray, np.dtype)):
        return True
    return (name or f'{kind.__module__}.{kind.__qualname__}') in names


def _reason(file: Any, error: Exception) -> str:
    """Return in one line why a checkpoint is refused."""
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
        # torch cannot list the globals of files before torch 1.6 and of some malformed files.
        with _allowed(), suppress(Exception):
            names = torch.serialization.get_unsafe_globals_in_checkpoint(file) or names
    listed = ', '.join(sorted(names))
    return (
        f'it names {listed}, which mmtempo does not load; allow what you trust with '
        f'torch.serialization.add_safe_globals([{listed}]) in a module of custom_imports'
    )
