"""Loads checkpoints that are named by a URL, or by a name of a model zoo, in torch's safe mode.

mmengine's own loaders for these call `torch.load` with `weights_only=False`, on both stacks:
whatever the other side sends runs here. These loaders take their places where a tool, a loop or a
hook of ours is used; a program that only imports mmtempo keeps mmengine's.
"""

from __future__ import annotations

import io
import os
import os.path as osp
from collections import OrderedDict
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.parse import urlparse

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

from .loading import UnreadableCheckpointError, load_from_local, load_safely

ZOOS: dict[tuple[str, ...], Callable[[], dict[str, str]]] = {
    ('torchvision://', 'modelzoo://'): get_torchvision_models,
    ('openmmlab://', 'open-mmlab://'): get_external_models,
}


class DownloadError(UnreadableCheckpointError, OSError):
    """A checkpoint did not arrive."""


def load_from_http(filename: str, map_location: Any = None) -> Any:
    """Download once into torch's cache, as stock does, and load that file safely.

    Args:
        filename: The URL.
        map_location: As in `torch.load`. Defaults to None.
    """
    folder = osp.join(torch.hub.get_dir(), 'checkpoints')
    name = osp.basename(urlparse(filename).path)
    if not name:
        raise UnreadableCheckpointError(f'checkpoint {filename}: the URL names no file')
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
    """Look a name up in mmengine's lists of models.

    Args:
        filename: Scheme and name.
        map_location: As in `torch.load`. Defaults to None.
    """
    scheme, _, name = filename.partition('://')
    find = next(find for schemes, find in ZOOS.items() if f'{scheme}://' in schemes)
    try:
        urls = find()
    except ModuleNotFoundError as error:
        raise UnreadableCheckpointError(
            f'checkpoint {filename}: the list of models is in {error.name}, which is not '
            'installed; install it, or name a file or a URL instead'
        ) from error
    name = get_deprecated_model_names().get(name, name)
    if name not in urls:
        raise UnreadableCheckpointError(
            f'checkpoint {filename}: {scheme} has no model {name!r}; check the name, or name a '
            'file or a URL instead'
        )
    url = urls[name]
    if urlparse(url).scheme in ('http', 'https'):
        return load_from_http(url, map_location)
    # A few are files that the user has put there.
    cache = osp.join(os.environ.get('XDG_CACHE_HOME', '~/.cache'), 'mmengine')
    home = osp.expanduser(os.environ.get('MMENGINE_HOME', cache))
    return load_from_local(osp.join(home, url), map_location)


def load_from_mmcls(filename: str, map_location: Any = None) -> Any:
    """The backbone of a model of mmcls.

    Args:
        filename: Scheme and name.
        map_location: As in `torch.load`. Defaults to None.
    """
    urls, name = get_mmcls_models(), filename.partition('://')[2]
    if name not in urls:
        raise UnreadableCheckpointError(f'checkpoint {filename}: mmcls has no model {name!r}')
    checkpoint = load_from_http(urls[name], map_location)
    state = checkpoint.get('state_dict', checkpoint)
    prefix = 'backbone.'
    return dict(
        state_dict=OrderedDict(
            (key[len(prefix) :], value) for key, value in state.items() if key.startswith(prefix)
        )
    )


def load_from_store(filename: str, map_location: Any = None) -> Any:
    """A file of an object store, through mmengine's backend.

    Args:
        filename: The URL.
        map_location: As in `torch.load`. Defaults to None.
    """
    backend = get_file_backend(filename, backend_args={'backend': 'petrel'})
    with io.BytesIO(backend.get(filename)) as file:
        return load_safely(file, filename, map_location)


def register_safe_downloads() -> None:
    """Let URLs and names of models go through these loaders, from now on."""
    CheckpointLoader.register_scheme(('http://', 'https://'), load_from_http, force=True)
    CheckpointLoader.register_scheme('mmcls://', load_from_mmcls, force=True)
    stores = [r'(\S+\:)?s3://', r'(\S+\:)?petrel://']
    CheckpointLoader.register_scheme(stores, load_from_store, force=True)
    for schemes in ZOOS:
        CheckpointLoader.register_scheme(schemes, load_from_zoo, force=True)


def _download(url: str, path: str) -> None:
    if osp.exists(path):
        return
    os.makedirs(osp.dirname(path), exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, path, progress=os.isatty(2))
    except (OSError, HTTPException, ValueError) as error:  # ValueError: no host in the URL
        raise DownloadError(
            f'checkpoint {url} could not be downloaded: {error}; download it yourself, and name '
            'the file instead'
        ) from error
