"""How much memory a process and its children have, seen from outside."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterator

# In kB. Shared pages count in parts, so that a sum is right; mapped files are the page cache's.
_FIELDS = re.compile(r'^Pss_(?:Anon|Shmem):\s+(\d+) kB', re.MULTILINE)


def family_of(pid: int) -> list[int]:
    """The process, its children, theirs, and so on."""
    children: dict[int, list[int]] = {}
    for name in os.listdir('/proc'):
        if name.isdigit():
            stat = _read(f'/proc/{name}/stat')
            if stat:  # name in parentheses, state, parent
                parent = int(stat.rpartition(')')[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    family = [pid]
    for one in family:
        family += children.get(one, [])
    return family


def memory_of(pid: int) -> int:
    """Bytes that the process and its children hold, memory shared by them counted once.

    The parent is looked at last: what a child maps meanwhile goes from the parent's count to its
    own, and would be in both.
    """
    children = sum(map(_own, family_of(pid)[1:]))
    return children + _own(pid)


def _own(pid: int) -> int:
    return 1024 * sum(map(int, _FIELDS.findall(_read(f'/proc/{pid}/smaps_rollup'))))


def peak_of(command: list[str]) -> tuple[int, int] | None:
    """What a process says that it has, and the bytes that it has in addition at most; Linux only.

    It prints `ready` and a number, waits for a line, works, prints `done` and waits once more.
    """
    if not _FIELDS.search(_read('/proc/self/smaps_rollup')):
        return None
    with talking_to(command) as (process, failure):
        assert process.stdin is not None
        assert process.stdout is not None
        line = 'begin'
        while line and not line.startswith('ready'):
            line = process.stdout.readline()
        if line:
            before = peak = memory_of(process.pid)
            process.stdin.write('go\n')
            process.stdin.flush()
            while not select.select([process.stdout], [], [], 0.001)[0]:
                peak = max(peak, memory_of(process.pid))
            if process.stdout.readline() == 'done\n':
                process.stdin.write('end\n')
                process.stdin.flush()
                return int(line.split()[1]), peak - before
        process.kill()
        raise failure()


@contextlib.contextmanager
def talking_to(
    command: list[str],
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], RuntimeError]]]:
    """A process that is asked and answers by lines, and what to raise where it fails."""
    with (
        tempfile.TemporaryFile('w+') as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):

        def failure() -> RuntimeError:
            process.wait()
            errors.seek(0)
            return RuntimeError(f'{command} failed: {errors.read().strip()}')

        yield process, failure


def _read(path: str) -> str:
    """Nothing, where the process has ended or is somebody else's."""
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read()
    except OSError:
        return ''
