"""Runs commands where something is short: a small /dev/shm, few open files.

They are real limits of real processes. Where they cannot be set, the test is skipped.
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
    """Run a command that has a /dev/shm of its own, as in a container.

    Args:
        command: With its arguments.
        size: As mount takes it.
        timeout: Seconds.
        **kwargs: For `subprocess.run`, as `cwd` or `env`.
    """
    own = _own_mounts()
    if own is None:
        pytest.skip('file systems cannot be mounted here')
    return _run([*own, 'sh', '-c', MOUNTS.format(size=size), 'sh', *command], timeout, kwargs)


def low_nofile(
    command: list[str], soft: int, hard: int, timeout: float = 60, **kwargs: object
) -> subprocess.CompletedProcess:
    """Run a command that may have few files open.

    Args:
        command: With its arguments.
        soft: What it begins with.
        hard: To what it may raise that.
        timeout: Seconds.
        **kwargs: For `subprocess.run`, as `cwd` or `env`.
    """
    if sys.platform == 'win32':
        pytest.skip('there is no such limit')
    shell = ['sh', '-c', LIMITS.format(soft=soft, hard=hard), 'sh']
    return _run([*shell, *command], timeout, kwargs)


@functools.cache
def _own_mounts() -> list[str] | None:
    """What gives a command mounts that nobody else sees: as root, or as root of its own."""
    if shutil.which('unshare') is None:
        return None
    for own in (['unshare', '-m'], ['unshare', '-r', '-m']):
        trial = [*own, 'sh', '-c', MOUNTS.format(size='1m'), 'sh', 'true']
        if subprocess.run(trial, capture_output=True, timeout=10).returncode == 0:
            return own
    return None


def _run(command: list[str], timeout: float, kwargs: dict) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **kwargs)
