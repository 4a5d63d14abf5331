"""The writer's pipes belong to the training, and to no process that is forked from it."""

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
        except OSError:  # of the listing itself
            continue
    return {name for name in found if name.startswith('pipe:')}


def job(path: str) -> dict:
    return dict(area=None, files=[(path, [('version', b'3\n')])], marker=None, remove=[])


@forks
def test_forked_process_has_no_pipe_of_the_writer(tmp_path: object) -> None:
    before = pipes()
    client = WriterClient()
    ours = pipes() - before
    assert len(ours) == 2
    assert not ours & in_child(pipes)
    assert client.ask(job(f'{tmp_path}/a'), lambda size: None)['error'] is None
    assert client.close() == 0


def drop(client: WriterClient) -> bool:
    """What a forked process does with its copy at its end, and whether its files are still good."""
    ours, theirs = os.pipe()
    client._jobs.write(b'nothing that the writer may see')
    client.close_in_fork()  # harmless once more
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


def test_process_ends_without_a_word_when_its_input_ends() -> None:
    client = WriterClient()
    assert not client.has_ended
    client._jobs.close()
    assert client._process.wait(60) == 0
    assert client.has_ended
    client.close()
