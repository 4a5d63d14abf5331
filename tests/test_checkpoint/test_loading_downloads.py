"""Checkpoints of a URL or a model zoo are downloaded once, and no code in them runs.

Covers the loaders of `mmtempo.checkpoint.loading` for names that are not paths.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from mmengine.runner import CheckpointLoader, Runner

from mmtempo.checkpoint import loading
from mmtempo.checkpoint.loading import UnreadableCheckpointError
from mmtempo.cli.run import run_tool
from tests.testing.common import MINI
from tests.testing.tool_commands import run, tiny
from tests.testing.toy import STOCK, config


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        self.server.requests.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """Serve a folder; torch's cache is another one."""
    (tmp_path / 'served').mkdir()
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'cache'))
    handler = functools.partial(_Quiet, directory=str(tmp_path / 'served'))
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as found:
        found.requests = []  # type: ignore[attr-defined]
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture(autouse=True)
def safe_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the safe loaders, and restore those of mmengine afterwards."""
    monkeypatch.setattr(CheckpointLoader, '_schemes', dict(CheckpointLoader._schemes))
    loading.register_safe_downloads()


def url_of(server: ThreadingHTTPServer, name: str) -> str:
    return f'http://127.0.0.1:{server.server_port}/{name}'


def load(name: str) -> dict:
    return CheckpointLoader.load_checkpoint(name, map_location='cpu')


class _RunsCommand:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple:
        return os.system, (self.command,)


def test_file_is_downloaded_once(server: ThreadingHTTPServer, tmp_path: Path) -> None:
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


def test_error_names_a_missing_url(server: ThreadingHTTPServer) -> None:
    with pytest.raises(OSError, match=r'checkpoint http.*gone.pth could not be downloaded.*404'):
        load(url_of(server, 'gone.pth'))


@pytest.mark.parametrize('scheme', ['open-mmlab', 'openmmlab', 'torchvision', 'modelzoo'])
def test_zoo_models_load_by_name(
    server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    torch.save(dict(x=torch.ones(3)), tmp_path / 'served/net.pth')
    zoo = {'net': url_of(server, 'net.pth'), 'own': 'own.pth'}
    monkeypatch.setattr(loading, 'ZOOS', {tuple(loading.ZOOS)[i]: lambda: zoo for i in (0, 1)})
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path / 'home'))
    (tmp_path / 'home').mkdir()
    torch.save(dict(x=torch.zeros(3)), tmp_path / 'home/own.pth')
    assert torch.equal(load(f'{scheme}://net')['x'], torch.ones(3))
    assert torch.equal(load(f'{scheme}://own')['x'], torch.zeros(3))
    with pytest.raises(ValueError, match=rf"{scheme} has no model 'nett'.*; did you mean net\?"):
        load(f'{scheme}://nett')


def test_mmcls_models_load_as_backbones(
    server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {'backbone.a': torch.ones(2), 'head.b': torch.zeros(2)}
    torch.save(dict(state_dict=state), tmp_path / 'served/cls.pth')
    monkeypatch.setattr(loading, 'get_mmcls_models', lambda: {'x': url_of(server, 'cls.pth')})
    assert list(load('mmcls://x')['state_dict']) == ['a']


def test_object_store_files_load_safely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = tmp_path / 'trace'
    torch.save(dict(x=torch.ones(2)), tmp_path / 'good')
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), tmp_path / 'bad')

    class Store:
        def get(self, url: str) -> bytes:
            return (tmp_path / url.rpartition('/')[2]).read_bytes()

    monkeypatch.setattr(loading, 'get_file_backend', lambda *_, **__: Store())
    assert torch.equal(load('s3://bucket/good')['x'], torch.ones(2))
    with pytest.raises(ValueError, match='bucket/bad cannot be read safely'):
        load('petrel:s3://bucket/bad')
    assert not trace.exists()


def test_zoo_lists_are_those_of_mmengine() -> None:
    zoo = loading.ZOOS['openmmlab://', 'open-mmlab://']()
    assert zoo['resnet50_v1c'].startswith('https://')


SCHEMES = """
import sys
if len(sys.argv) > 1:
    import mmtempo
from mmengine.runner import CheckpointLoader
from mmengine.runner.checkpoint import CheckpointLoader
for scheme, loader in CheckpointLoader._schemes.items():
    print(repr(scheme), loader.__module__ if scheme else '', loader.__name__)
"""


def test_import_alone_keeps_the_loaders_of_mmengine() -> None:
    """Only the loader for files is replaced; it has the same name."""
    with_us, without = (
        subprocess.run(
            [sys.executable, '-W', 'ignore', '-c', SCHEMES, *words],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()
        for words in (['mmtempo'], [])
    )  # fmt: skip
    found = [line for line in with_us if line.startswith(("'", '"'))]
    assert found == [line for line in without if line.startswith(("'", '"'))]
    assert "'http://' mmengine.runner.checkpoint load_from_http" in found
    assert "'modelzoo://' mmengine.runner.checkpoint load_from_torchvision" in found
    assert "''  load_from_local" in found


PARTS = {
    'loop': dict(train_cfg=dict(type='PrefetchIterBasedTrainLoop')),
    'checkpoint hook': dict(default_hooks=dict(checkpoint=dict(type='AsyncCheckpointHook'))),
    'log hook': dict(default_hooks=dict(runtime_info=dict(type='SparseRuntimeInfoHook'))),
}


@pytest.mark.parametrize('part', [*PARTS, 'none'])
def test_each_part_of_mmtempo_registers_safe_downloads(
    part: str, server: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = 'http://'
    schemes = dict(CheckpointLoader._schemes)
    schemes[http] = lambda filename, map_location: dict(state_dict={})  # fake of stock's loader
    schemes[http].__name__ = 'load_from_stock'
    monkeypatch.setattr(CheckpointLoader, '_schemes', schemes)
    trace = tmp_path / 'trace'
    torch.save(dict(x=_RunsCommand(f'touch {trace}')), tmp_path / 'served/bad.pth')
    cfg = config(tmp_path / 'work', STOCK, **{'train_cfg.max_iters': 1})
    cfg.merge_from_dict(PARTS.get(part, {}))
    cfg.load_from = url_of(server, 'bad.pth')
    runner = Runner.from_cfg(cfg)
    if part == 'none':
        runner.train()
        return
    with pytest.raises(UnreadableCheckpointError, match='cannot be read safely'):
        runner.train()
    assert not trace.exists()


@pytest.mark.parametrize(
    ('script', 'file', 'says'),
    [
        ('test.py', 'bad.pth', 'cannot be read safely: it names '),
        pytest.param('train.py', 'bad.pth', 'it names ', marks=pytest.mark.slow),
        pytest.param('test.py', 'gone.pth', 'downloaded: HTTP Error 404', marks=pytest.mark.slow),
    ],
)
def test_tool_reports_a_refused_url_in_one_line(
    script: str, file: str, says: str, server: ThreadingHTTPServer, bev_root: str, tmp_path: Path
) -> None:
    torch.save(dict(x=_RunsCommand('true')), tmp_path / 'served/bad.pth')
    options, url = tiny(bev_root, tmp_path / 'work'), url_of(server, file)
    words = [url] if script == 'test.py' else []
    if script == 'train.py':
        options['load_from'] = url
    text = run(script, MINI, *words, options=options, code=2)
    assert re.search(rf'\n{script}: error: checkpoint .*{says}.*\n$', text)
    assert url in text.splitlines()[-1]
    assert 'Traceback' not in text


@pytest.mark.parametrize('name', ['torchvision://nett', 'mmcls://nett', 'http://', 'https:///x'])
def test_tool_reports_a_name_that_cannot_be_found(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv('TORCH_HOME', str(tmp_path))

    def missing() -> dict:
        raise ModuleNotFoundError('no', name='torchvision')

    monkeypatch.setattr(loading, 'ZOOS', {('torchvision://',): missing})
    assert run_tool('test.py', lambda: None, lambda _: load(name)) == 2
    text = capsys.readouterr().err
    assert f'test.py: error: checkpoint {name}' in text
