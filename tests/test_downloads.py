"""Checkpoints that are named by a URL or in a model zoo are downloaded once, and run nothing."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from mmengine.runner import CheckpointLoader

from mmtempo import downloads


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """Serves a folder; torch's cache is another one."""
    (tmp_path / 'served').mkdir()
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'cache'))
    handler = functools.partial(_Quiet, directory=str(tmp_path / 'served'))
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as found:
        found.requests = []  # type: ignore[attr-defined]
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def url_of(server: ThreadingHTTPServer, name: str) -> str:
    return f'http://127.0.0.1:{server.server_port}/{name}'


def load(name: str) -> dict:
    return CheckpointLoader.load_checkpoint(name, map_location='cpu')


class _RunsCommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def test_is_downloaded_once(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    torch.save(dict(x=torch.ones(3)), tmp_path / 'served/model-1.pth')
    for _ in range(2):
        assert torch.equal(load(url_of(server, 'model-1.pth?from=here'))['x'], torch.ones(3))
    assert server.requests == ['/model-1.pth?from=here']  # type: ignore[attr-defined]
    assert (tmp_path / 'cache/hub/checkpoints/model-1.pth').is_file()


def test_hostile_download_runs_nothing(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    trace = tmp_path / 'trace'
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), tmp_path / 'served/bad.pth')
    with pytest.raises(ValueError, match='cannot be read safely'):
        load(url_of(server, 'bad.pth'))
    assert not trace.exists()


def test_what_is_not_there_is_named(server: ThreadingHTTPServer) -> None:
    with pytest.raises(OSError, match=r'checkpoint http.*gone.pth could not be downloaded.*404'):
        load(url_of(server, 'gone.pth'))


@pytest.mark.parametrize('scheme', ['open-mmlab', 'openmmlab', 'torchvision', 'modelzoo'])
def test_names_of_a_zoo(
    server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    torch.save(dict(x=torch.ones(3)), tmp_path / 'served/net.pth')
    zoo = {'net': url_of(server, 'net.pth'), 'own': 'own.pth'}
    monkeypatch.setattr(downloads, 'ZOOS', {tuple(downloads.ZOOS)[i]: lambda: zoo for i in (0, 1)})
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'home'))
    (tmp_path / 'home').mkdir()
    torch.save(dict(x=torch.zeros(3)), tmp_path / 'home/own.pth')
    assert torch.equal(load(f'{scheme}://net')['x'], torch.ones(3))
    assert torch.equal(load(f'{scheme}://own')['x'], torch.zeros(3))
    with pytest.raises(ValueError, match=f"{scheme} has no model 'nett'"):
        load(f'{scheme}://nett')


def test_backbones_of_mmcls(
    server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {'backbone.a': torch.ones(2), 'head.b': torch.zeros(2)}
    torch.save(dict(state_dict=state), tmp_path / 'served/cls.pth')
    monkeypatch.setattr(downloads, 'get_mmcls_models', lambda: {'x': url_of(server, 'cls.pth')})
    assert list(load('mmcls://x')['state_dict']) == ['a']


def test_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / 'trace'
    torch.save(dict(x=torch.ones(2)), tmp_path / 'good')
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), tmp_path / 'bad')

    class Store:
        def get(self, url: str) -> bytes:
            return (tmp_path / url.rpartition('/')[2]).read_bytes()

    monkeypatch.setattr(downloads, 'get_file_backend', lambda *_, **__: Store())
    assert torch.equal(load('s3://bucket/good')['x'], torch.ones(2))
    with pytest.raises(ValueError, match='bucket/bad cannot be read safely'):
        load('petrel:s3://bucket/bad')
    assert not trace.exists()


def test_lists_are_those_of_mmengine() -> None:
    zoo = downloads.ZOOS['openmmlab://', 'open-mmlab://']()
    assert zoo['resnet50_v1c'].startswith('https://')
