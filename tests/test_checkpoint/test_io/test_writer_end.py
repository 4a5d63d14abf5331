"""The end of a writer completes the save on its way, and leaves no process, thread or memory."""

from __future__ import annotations

import gc
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import mmtempo
from mmtempo.checkpoint.io import writer as durable_writer
from mmtempo.checkpoint.io.snapshot import Snapshot
from mmtempo.checkpoint.io.writer import DurableWriter, WriterDied
from tests.testing.durable_writer import LONG, forks, is_value, load, process_of, resources, save


@pytest.mark.parametrize('way', ['close', 'killed', 'failed', 'unused'])
def test_close_leaves_nothing(way: str, tmp_path: Path) -> None:
    before = resources()
    writer = DurableWriter()
    if way != 'unused':
        done = save(writer, tmp_path / ('gone/a' if way == 'failed' else 'a'))
        writer.wait()
        assert (done.error is None) is (way != 'failed')
        pid = process_of(writer)
        assert resources() != before
    if way == 'killed':
        os.kill(pid, signal.SIGKILL)
    writer.close()
    assert resources() == before
    if way != 'unused':
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    writer.close()
    with pytest.raises(RuntimeError, match='the writer is closed'):
        save(writer, tmp_path / 'b')


@forks
def test_close_does_not_wait_for_forked_processes(tmp_path: Path) -> None:
    """A data loader worker may outlive the writer; it has closed its copies of the pipes."""
    writer = DurableWriter()
    save(writer, tmp_path / 'a')
    writer.wait()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    closing = threading.Thread(target=writer.close)
    closing.start()
    closing.join(LONG)
    hangs = closing.is_alive()
    os.close(theirs)
    os.close(ours)
    os.waitpid(child, 0)
    closing.join()
    assert not hangs


@forks
def test_close_in_a_forked_process_has_no_effect(tmp_path: Path) -> None:
    writer = DurableWriter()
    save(writer, tmp_path / 'a')
    writer.wait()
    child = os.fork()
    if child == 0:
        writer.close()
        del writer
        gc.collect()
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    done = save(writer, tmp_path / 'b')
    writer.close()
    assert (done.error, done.restarts) == (None, 0)


def begin_save(
    writer: DurableWriter, path: Path, monkeypatch: pytest.MonkeyPatch
) -> threading.Event:
    """Start a save, and wait until it is copied; it is written when the returned event is set."""
    ready, go = threading.Event(), threading.Event()
    ask = durable_writer._WriterThread._ask

    def asking(self: Any, *args: Any) -> dict:
        ready.set()
        go.wait()
        return ask(self, *args)

    monkeypatch.setattr(durable_writer._WriterThread, '_ask', asking)
    save(writer, path)
    ready.wait()
    return go


def test_collected_writer_completes_its_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.collect()  # else the collection below closes files of earlier tests, too
    before = resources()
    writer = DurableWriter()
    go = begin_save(writer, tmp_path / 'a', monkeypatch)
    join = threading.Thread.join

    def joining(self: threading.Thread, timeout: float | None = None) -> None:
        go.set()
        join(self, timeout)

    monkeypatch.setattr(threading.Thread, 'join', joining)
    del writer
    gc.collect()
    assert go.is_set()
    assert is_value(tmp_path / 'a', 1)
    assert resources() == before


def test_writer_collected_in_its_own_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread must not join itself."""
    before = resources()
    holder = [DurableWriter()]
    finish = Snapshot.finish
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, 'unraisablehook', unraisable.append)
    given = threading.Event()

    def dropping(self: Snapshot) -> None:
        given.wait()
        holder.clear()
        finish(self)

    monkeypatch.setattr(Snapshot, 'finish', dropping)
    save(holder[0], tmp_path / 'a')
    thread = holder[0]._thread._thread
    assert thread is not None
    given.set()
    thread.join(LONG)
    assert not thread.is_alive()
    assert unraisable == []
    assert is_value(tmp_path / 'a', 1)
    assert resources() == before


@pytest.mark.parametrize('is_started', [True, False])
def test_abandon_fails_the_save_at_once(
    is_started: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resources()
    writer = DurableWriter()
    if is_started:
        save(writer, tmp_path / 'before')
        writer.wait()
    go = begin_save(writer, tmp_path / 'a', monkeypatch)
    thread, last = writer._thread._thread, writer._last
    assert thread is not None
    assert last is not None
    writer.abandon()
    writer.close()  # does not wait
    go.set()
    thread.join(LONG)
    assert isinstance(last.error, WriterDied)
    assert os.listdir(tmp_path) == (['before'] if is_started else [])
    writer.await_copies()
    writer.wait()
    assert resources() == before


def test_abandon_before_any_save_leaves_nothing() -> None:
    before = resources()
    DurableWriter().abandon()
    assert resources() == before


# Each process ends the interpreter in another way during a save.
ENDINGS = """
import atexit, os, signal, sys, threading, types
stub = types.ModuleType('mmtempo')  # the package imports mmseg, which takes seconds
stub.__path__ = [{package!r}]
sys.modules['mmtempo'] = stub
import torch
from mmtempo.checkpoint.io.writer import DurableWriter, _WriterThread

go, ask = threading.Event(), _WriterThread._ask
_WriterThread._ask = lambda *args: go.wait() and ask(*args)  # nothing is written before the end

def begin(name):
    global writer
    atexit.register(go.set)
    writer = DurableWriter()
    weight = torch.ones(300_000)
    path = os.path.join({folder!r}, name)
    writer.save([(path, dict(weight=weight))], late={{weight.data_ptr()}})
    writer.await_copies()
    weight.zero_()

for name in ('sys.exit', 'error', 'end', 'killed'):
    pid = os.fork()
    if pid == 0:
        break
    code = os.waitpid(pid, 0)[1]
    print(name, os.waitstatus_to_exitcode(code), flush=True)
else:
    os._exit(0)

begin(name)
if name == 'sys.exit':
    sys.exit(143)
if name == 'error':
    raise ValueError('of the training')
if name == 'killed':
    go.set()
    writer.wait()
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:  # a data loader worker, which does not end with the training at once
        signal.pause()
    print(pid, writer._thread._process.pid, flush=True)
    input()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_interpreter_exit_completes_the_save(tmp_path: Path) -> None:
    script = ENDINGS.format(package=os.path.dirname(str(mmtempo.__file__)), folder=str(tmp_path))
    training = subprocess.Popen(
        [sys.executable, '-c', script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert training.stdin is not None
    assert training.stdout is not None
    assert training.stderr is not None
    codes = [training.stdout.readline().strip() for _ in range(3)]
    assert codes == ['sys.exit 143', 'error 1', 'end 0']
    # A writer must not outlive a killed training: it could disturb the next run.
    loader, process = map(int, training.stdout.readline().split())
    handle = os.pidfd_open(process)
    training.stdin.write('\n')
    training.stdin.flush()
    ended = bool(select.select([handle], [], [], LONG / 4)[0])
    os.close(handle)
    os.kill(loader, signal.SIGKILL)
    out, err = training.communicate()
    assert out == 'killed -9\n'
    assert ended
    # Only the error is printed.
    assert err.count('Traceback') == 1
    assert 'ValueError: of the training' in err
    for name in ('sys.exit', 'error', 'end', 'killed'):
        assert torch.equal(load(tmp_path / name)['weight'], torch.ones(300_000)), name
    assert len(os.listdir(tmp_path)) == 4
