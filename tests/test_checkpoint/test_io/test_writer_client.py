"""The training process alone has the pipes to the writer; forked processes close their copies."""

from __future__ import annotations

import gc
import os

import pytest

from mmtempo.checkpoint.io.writer_client import WriterClient
from tests.testing.processes import in_child

forks = pytest.mark.filterwarnings('ignore:.*multi-threaded:DeprecationWarning')


def pipes() -> set[str]:
    found = set()
    for number in os.listdir('/proc/self/fd'):
        try:
            found.add(os.readlink(f'/proc/self/fd/{number}'))
        except OSError:  # the descriptor of the listing itself
            continue
    return {name for name in found if name.startswith('pipe:')}


def job(path: str) -> dict:
    return dict(buffer=None, files=[(path, [('version', b'3\n')])], marker=None, remove=[])


@forks
def test_forked_process_has_no_pipe_to_the_writer(tmp_path: object) -> None:
    before = pipes()
    client = WriterClient()
    ours = pipes() - before
    assert len(ours) == 2
    assert not ours & in_child(pipes)
    assert client.ask(job(f'{tmp_path}/a'), lambda size: None)['error'] is None
    assert client.close() == 0


def drop(client: WriterClient) -> bool:
    """Close a client as a forked process does at its end; return whether other files still work."""
    ours, theirs = os.pipe()
    client._jobs.write(b'must not reach the writer')
    client.close_in_fork()  # a second call has no effect
    client._jobs.close()
    client._answers.close()
    del client
    gc.collect()
    os.write(theirs, b'x')
    return os.read(ours, 1) == b'x'


@forks
def test_forked_process_may_close_its_copy(tmp_path: object) -> None:
    client = WriterClient()
    assert in_child(drop, client)
    assert client.ask(job(f'{tmp_path}/a'), lambda size: None)['error'] is None
    assert client.close() == 0


def test_process_exits_when_its_input_ends() -> None:
    client = WriterClient()
    assert not client.has_ended
    client._jobs.close()
    assert client._process.wait(60) == 0
    assert client.has_ended
    client.close()
