"""Commands that run with a small /dev/shm or few file descriptors.

The limits are those of the operating system. Where they cannot be set, the test is skipped.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys

import pytest

MOUNTS = 'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
LIMITS = 'ulimit -S -n {soft} && ulimit -H -n {hard} && exec "$@"'


def in_small_shm(
    command: list[str], size: str = '64m', timeout: float = 60, **kwargs: object
) -> subprocess.CompletedProcess:
    """Run a command with a private /dev/shm, as in a container.

    Args:
        command: Program and arguments.
        size: Size of the file system, in mount's notation. Defaults to '64m'.
        timeout: Time limit in seconds. Defaults to 60.
        **kwargs: Arguments of `subprocess.run`, such as `cwd` or `env`.
    """
    prefix = _mount_namespace()
    if prefix is None:
        pytest.skip('file systems cannot be mounted here')
    return _run([*prefix, 'sh', '-c', MOUNTS.format(size=size), 'sh', *command], timeout, kwargs)


def low_nofile(
    command: list[str], soft: int, hard: int, timeout: float = 60, **kwargs: object
) -> subprocess.CompletedProcess:
    """Run a command with a low limit of open files.

    Args:
        command: Program and arguments.
        soft: Soft limit, in file descriptors.
        hard: Hard limit, to which the command may raise the soft one.
        timeout: Time limit in seconds. Defaults to 60.
        **kwargs: Arguments of `subprocess.run`, such as `cwd` or `env`.
    """
    if sys.platform == 'win32':
        pytest.skip('Windows has no limit of open files')
    shell = ['sh', '-c', LIMITS.format(soft=soft, hard=hard), 'sh']
    return _run([*shell, *command], timeout, kwargs)


@functools.cache
def _mount_namespace() -> list[str] | None:
    """Return the prefix that gives a command a mount namespace: as root, or in a user namespace."""
    if shutil.which('unshare') is None:
        return None
    for prefix in (['unshare', '-m'], ['unshare', '-r', '-m']):
        trial = [*prefix, 'sh', '-c', MOUNTS.format(size='1m'), 'sh', 'true']
        if subprocess.run(trial, capture_output=True, timeout=10).returncode == 0:
            return prefix
    return None


def _run(command: list[str], timeout: float, kwargs: dict) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **kwargs)
