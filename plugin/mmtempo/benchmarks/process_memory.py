"""Memory of a process and its children, measured from another process."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import tempfile
from collections.abc import Callable, Iterator

# In kB. Pss counts a shared page in parts, so that a sum over processes is right. Mapped files are
# left out: they are in the page cache.
_FIELDS = re.compile(r'^Pss_(?:Anon|Shmem):\s+(\d+) kB', re.MULTILINE)


def family_of(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
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
    """Return the bytes of a process and its children, with shared memory counted once.

    The parent is read last: a page that a child maps between two reads moves from the parent's
    count to the child's, and would be counted in both.
    """
    children = sum(map(_memory_of_one, family_of(pid)[1:]))
    return children + _memory_of_one(pid)


def _memory_of_one(pid: int) -> int:
    return 1024 * sum(map(int, _FIELDS.findall(_read(f'/proc/{pid}/smaps_rollup'))))


def peak_of(command: list[str]) -> tuple[int, int] | None:
    """Return the number that a process reports, and the peak of its additional bytes.

    The process prints `ready` and a number, waits for a line, works, prints `done` and waits for
    another line.

    Returns:
        The number and the bytes; None on systems other than Linux.
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
    """Start a process with pipes for lines; yield it and a function that makes its error.

    The function waits for the end of the process, and returns an error with its stderr.
    """
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
    """Return the text of a file; '' if it is gone with its process, or not readable."""
    try:
        with open(path, encoding='utf-8', errors='replace') as file:
            return file.read()
    except OSError:
        return ''
