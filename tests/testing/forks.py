"""Server that forks a process per training after importing everything once.

Importing torch, mmengine and mmseg takes seconds; a fork takes a millisecond. The forking process
does nothing else, so that it has no threads, which a fork would not copy.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LONG = 120.0  # seconds; reached only by a process that hangs
MODULES = ['tests.testing.saving']  # imported for the types that they register


class Child:
    """Process that runs a function.

    Attributes:
        code: Exit code, or the negative number of the signal that ended the process; None while it
            runs.
    """

    def __init__(self, server: Server, pid: int, log: Path) -> None:
        self._server, self.pid, self.log = server, pid, log
        self._handle = os.pidfd_open(pid)
        self.code: int | None = None

    def wait(self, seconds: float = LONG) -> int:
        """Wait for the end of the process and return its exit code."""
        if self.code is None:
            if not select.select([self._handle], [], [], seconds)[0]:
                self.kill()
                raise AssertionError(f'process {self.pid} hangs, its log:\n{self.text}')
            self.code = self._server.ask(wait=self.pid)
            os.close(self._handle)
        return self.code

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # the process may have just ended
            os.kill(self.pid, number)

    def kill(self, with_writer: bool = False) -> int:
        for pid in [*(self.writers() if with_writer else []), self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self.wait()

    def writers(self) -> list[int]:
        """Return the writing processes of this process, recognized by their command line."""
        return [pid for pid in children_of(self.pid) if b'-I\0-S\0' in _command(pid)]

    @property
    def text(self) -> str:
        return self.log.read_text(errors='replace') if self.log.exists() else ''

    def until(self, condition: Callable[[], Any], what: str = 'the condition') -> Any:
        """Wait until a condition is true and return its value; fail if the process ends before."""
        end = time.monotonic() + LONG
        while not (found := condition()):
            ended = bool(select.select([self._handle], [], [], 0.002)[0])
            if (ended and not condition()) or time.monotonic() > end:
                raise AssertionError(f'{what} was not reached, log of the process:\n{self.text}')
        return found


class Server:
    """Client of the forking process, which runs each function in a fork."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', f'from {__name__} import serve; serve()'],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {'OMP_NUM_THREADS': '1'},
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + '\n')
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, function: Callable, log: Path, **arguments: Any) -> Child:
        """Call a module-level function in a fork, with arguments that JSON can represent."""
        name = f'{function.__module__}:{function.__name__}'
        request = dict(call=name, modules=MODULES, log=str(log), arguments=arguments)
        return Child(self, self.ask(**request), log)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@functools.cache
def server() -> Server:
    found = Server()
    atexit.register(found.close)
    return found


def start(function: Callable, log: Path, **arguments: Any) -> Child:
    return server().start(function, log, **arguments)


def run(function: Callable, log: Path, code: int = 0, **arguments: Any) -> str:
    """Run a function in a fork and return its output; fail unless it exits with `code`."""
    child = start(function, log, **arguments)
    assert child.wait() == code, child.text[-6000:]
    return child.text


def children_of(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f'/proc/{pid}/task'):
            found += Path(f'/proc/{pid}/task/{task}/children').read_text().split()
    return [int(child) for child in found]


def _command(pid: int) -> bytes:
    try:
        return Path(f'/proc/{pid}/cmdline').read_bytes()
    except OSError:
        return b''


def serve() -> None:
    """Run the forking process: read requests from stdin, write answers to stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), 'w', buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    importlib.import_module('tests.testing.saving').warm_up()
    for line in _lines():
        request = json.loads(line)
        if 'wait' in request:
            answer = os.waitstatus_to_exitcode(os.waitpid(request['wait'], 0)[1])
        else:
            for module in request['modules']:
                importlib.import_module(module)
            module, _, name = request['call'].partition(':')
            function = getattr(importlib.import_module(module), name)
            answer = os.fork()
            if answer == 0:
                answers.close()
                _call(function, request['log'], request['arguments'])
        print(json.dumps(answer), file=answers)


def _lines() -> Iterator[str]:
    while line := sys.stdin.readline():
        yield line


def _call(function: Callable, log: str, arguments: dict) -> None:
    """Run a function in the fork, then the exit functions; exit without joining threads."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        function(**arguments)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
