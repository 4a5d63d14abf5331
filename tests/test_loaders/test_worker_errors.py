"""Causes of worker failures, by exit code and by error."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys

import pytest

from mmtempo.loaders.worker_errors import why_os_error, why_worker_died
from tests.testing.limits import in_small_shm
from tests.testing.loader_plans import UNKNOWN, machine_limits


def test_sigkill_is_attributed_by_the_oom_count() -> None:
    before, after = machine_limits(oom_kills=1), machine_limits(oom_kills=3)
    text = why_worker_died(-9, oom_before=1, limits=after)
    assert text.startswith('SIGKILL by the OOM killer (2 kills since the workers started)')
    assert 'num_workers' in text
    text = why_worker_died(-9, oom_before=1, limits=before)
    assert text.startswith('SIGKILL by another process; the OOM killer has not acted')
    assert '64.0 GiB available' in text
    for known in (dict(oom_before=None, limits=before), dict(oom_before=1, limits=UNKNOWN)):
        text = why_worker_died(-9, **known)
        assert text.startswith('SIGKILL by the OOM killer, whose count cannot be read here, or by')


@pytest.mark.skipif(sys.platform == 'win32', reason='there are no signals')
@pytest.mark.parametrize(
    ('death', 'words'),
    [
        ('kill -BUS $$', ['SIGBUS', '/dev/shm is full (32.0 GiB free now)', '--shm-size']),
        ('kill -SEGV $$', ['SIGSEGV', 'compiled code', 'num_workers=0']),
        ('kill -ABRT $$', ['SIGABRT', 'compiled code']),
        ('kill -TERM $$', ['SIGTERM', 'sent by another process']),
        ('exit 1', ['exit code 1', 'pickled']),
        ('exit 0', ['exit code 0', 'sys.exit()']),
    ],
)
def test_cause_of_death_follows_exit_code(death: str, words: list[str]) -> None:
    code = subprocess.run(['sh', '-c', death]).returncode
    text = why_worker_died(code, oom_before=0, limits=machine_limits())
    assert [word for word in words if word not in text] == []
    assert why_worker_died(code, oom_before=0)  # on this machine


def test_cause_of_death_where_limits_are_unknown() -> None:
    def why(code: int) -> str:
        return why_worker_died(code, oom_before=None, limits=UNKNOWN)

    assert why(-99) == 'signal 99'
    assert 'access violation' in why(0xC0000005)
    assert 'paging file' in why(0xC000012D)
    assert '/dev/shm is full; ' in why(-signal.SIGBUS)


# Messages of torch 2.13 and Python 3.11 at these limits.
FILES = 'limit of open files (65536, hard limit 65536) is reached; raise it with ulimit -n 131072'


SHM = '/dev/shm is full (32.0 GiB free now); start the container with --shm-size=1g'


FULL = (
    'unable to allocate shared memory(shm) for file </torch_22_25_1>: No space left on device (28)'
)


@pytest.mark.parametrize(
    ('error', 'words'),
    [
        (OSError(errno.EMFILE, 'Too many open files', '/a.jpg'), FILES),
        (RuntimeError('Caught OSError in ...\nOSError: [Errno 24] Too many open files'), FILES),
        (RuntimeError('received 0 items of ancdata'), FILES),
        (EOFError(), 'is probably reached'),
        (RuntimeError(f'Caught RuntimeError in ...\nRuntimeError: {FULL}'), SHM),
        (OSError(errno.ENOSPC, 'No space left on device', '/dev/shm/cache'), SHM),
        (OSError(errno.ENOSPC, 'No space left on device', '/data/cache'), 'a disk is full, or'),
        (OSError(errno.ENOMEM, 'Cannot allocate memory'), 'out of memory (64.0 GiB available now)'),
        (OSError('[WinError 1455] The paging file is too small'), 'out of memory'),
        (OSError(errno.ENOENT, 'No such file or directory', '/a.jpg'), None),
        (EOFError('Ran out of input'), None),
        (ValueError('bad label'), None),
    ],
)
def test_system_limit_is_recognized_in_error(error: Exception, words: str | None) -> None:
    text = why_os_error(error, machine_limits())
    assert text is None if words is None else words in str(text)
    assert bool(why_os_error(error, UNKNOWN)) == bool(words)


WRITES = """
import mmap, os, sys
file = os.open('/dev/shm/batch', os.O_RDWR | os.O_CREAT)
os.ftruncate(file, 80 << 20)
memory = mmap.mmap(file, 80 << 20)
for start in range(0, 80 << 20, 4096):
    memory[start] = 1
"""


def test_write_beyond_small_shm_is_recognized() -> None:
    done = in_small_shm([sys.executable, '-I', '-c', WRITES], '64m')
    text = why_worker_died(done.returncode, oom_before=None, limits=machine_limits(shared_memory=0))
    assert text.startswith('SIGBUS: /dev/shm is full (0 B free now)'), done.stderr
    assert in_small_shm([sys.executable, '-I', '-c', WRITES], '96m').returncode == 0
