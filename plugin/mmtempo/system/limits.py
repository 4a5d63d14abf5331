"""What this machine, or the container around this process, has to offer."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

NO_LIMIT = 1 << 20  # open files, where nobody says how many there may be at most
# Of version 2, then of version 1.
MEMORY_LIMITS = ('memory.max', 'memory.high', 'memory.limit_in_bytes')
MEMORY_USAGE = ('memory.current', 'memory.usage_in_bytes')
# Version 1 counts without the groups inside, if not told otherwise; version 2 with them.
RECLAIMABLE = ('total_inactive_file', 'inactive_file')
OOM_COUNTS = ('memory.events', 'memory.oom_control')


class Cpus(NamedTuple):
    """How many CPUs may be kept busy, part of one too, and what says so."""

    number: float
    source: str


class OpenFiles(NamedTuple):
    """Limits of this process's open files, and how many are."""

    soft: int
    hard: int
    used: int


@dataclass(frozen=True)
class Limits:
    """All of it at one time; None where it is unknown.

    Attributes:
        cpus: Of this machine, for this process and its children.
        memory: Bytes that are free, or soon are when they are asked for.
        shared_memory: Bytes that are free in /dev/shm.
        open_files: Of this process.
        oom_kills: How often the OOM killer has struck here.
        platform: As `sys.platform`.
    """

    cpus: Cpus
    memory: int | None = None
    shared_memory: int | None = None
    open_files: OpenFiles | None = None
    oom_kills: int | None = None
    platform: str = sys.platform

    @classmethod
    def of_this_machine(cls, root: str = '/') -> Limits:
        """As they are now.

        Args:
            root: Where the machine's file systems are. Defaults to '/'.
        """
        shared_memory = shared_memory_free(root)
        if shared_memory is None and sys.platform == 'linux':
            shared_memory = 0  # nothing can be shared without
        return cls(
            usable_cpus(root),
            available_memory(root),
            shared_memory,
            open_files(root),
            oom_kills(root),
        )


def usable_cpus(root: str = '/') -> Cpus:
    """The least of the machine's CPUs, this process's affinity, and the quotas above it."""
    found = [Cpus(os.cpu_count() or 1, 'the machine')]
    if hasattr(os, 'sched_getaffinity'):
        found.append(Cpus(len(os.sched_getaffinity(0)), 'affinity'))
    for folder in _control_groups('cpu', root):
        quota, _, period = _read(folder, 'cpu.max').partition(' ')
        if not period:
            quota, period = _read(folder, 'cpu.cfs_quota_us'), _read(folder, 'cpu.cfs_period_us')
        if _number(quota) and _number(period):
            found.append(Cpus(int(quota) / int(period), 'cgroup quota'))
    return min(found, key=lambda cpus: cpus.number)


def available_memory(root: str = '/') -> int | None:
    """Bytes that can be had without swapping, or being killed; None where nobody says."""
    found = []
    for line in _read(root, 'proc/meminfo').splitlines():
        if line.startswith('MemAvailable:'):
            found.append(1024 * int(line.split()[1]))
    for folder in _control_groups('memory', root):
        limits = [_number(_read(folder, name)) for name in MEMORY_LIMITS]
        usage = [_number(_read(folder, name)) or 0 for name in MEMORY_USAGE]
        used = max(0, sum(usage) - _cached(folder))
        found += [max(0, limit - used) for limit in limits if limit is not None]
    return min(found, default=None)


def shared_memory_free(root: str = '/') -> int | None:
    """Bytes that are free in /dev/shm; None where there is none."""
    try:
        found = os.statvfs(os.path.join(root, 'dev/shm'))
    except (AttributeError, OSError):  # Windows has no statvfs
        return None
    return found.f_frsize * found.f_bavail


def open_files(root: str = '/') -> OpenFiles | None:
    """Limits of this process, and how many files it has open; None on Windows."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _number(_read(root, 'proc/sys/fs/nr_open')) or NO_LIMIT
    soft, hard = (most if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    for folder in ('proc/self/fd', 'dev/fd'):
        try:
            used = len(os.listdir(os.path.join(root, folder))) - 1  # it is open itself meanwhile
        except OSError:
            continue
        return OpenFiles(soft, hard, used)
    return OpenFiles(soft, hard, 0)


def raise_open_files(target: int) -> OpenFiles | None:
    """Let this process and its later children have as many files open, if the hard limit does.

    Args:
        target: The soft limit to have. One that is higher already stays.

    Returns:
        The limits that hold from now on; None where there are none.
    """
    now = open_files()
    if resource is None or now is None:
        return None
    soft = min(target, now.hard)
    if soft > now.soft:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (OSError, ValueError):  # macOS has a lower one of its own
            return now
    return open_files()


def oom_kills(root: str = '/') -> int | None:
    """How often the OOM killer struck in this control group, else in this machine."""
    sources = [(folder, name) for folder in _control_groups('memory', root) for name in OOM_COUNTS]
    for folder, name in [*sources, (root, 'proc/vmstat')]:
        for line in _read(folder, name).splitlines():
            if line.startswith('oom_kill '):
                return int(line.split()[1])
    return None


def _control_groups(controller: str, root: str) -> Iterator[str]:
    """Folders of the groups that this process is in, the innermost first.

    Both versions may be mounted, and a container may see its own group as the uppermost one.
    """
    own = {}
    for line in _read(root, 'proc/self/cgroup').splitlines():
        _, names, path = line.split(':', 2)
        own.update(dict.fromkeys(names.split(','), path))
    for line in _read(root, 'proc/self/mountinfo').splitlines():
        fields, _, system = line.partition(' - ')
        base, mounted = fields.split()[3:5]
        kind, _, options = system.split(' ', 2)
        if kind == 'cgroup2':
            path = own.get('', '')
        elif kind == 'cgroup' and controller in options.split(','):
            path = own.get(controller, '')
        else:
            continue
        inner = os.path.relpath(path or base, base)
        if inner.startswith('..'):  # it is outside of what can be seen
            inner = '.'
        top = os.path.join(root, mounted.lstrip('/'))
        while inner not in ('', '.'):
            yield os.path.join(top, inner)
            inner = os.path.dirname(inner)
        yield top


def _cached(folder: str) -> int:
    """Bytes of files that the kernel drops when memory is asked for."""
    stat = dict(line.split(' ', 1) for line in _read(folder, 'memory.stat').splitlines())
    return next((int(stat[name]) for name in RECLAIMABLE if name in stat), 0)


def _number(text: str) -> int | None:
    """None for 'max', for -1, and for nothing."""
    return int(text) if text.isdecimal() else None


def _read(folder: str, name: str) -> str:
    """Nothing, where there is no such file, or it is somebody else's."""
    try:
        with open(os.path.join(folder, name), encoding='utf-8') as file:
            return file.read().strip()
    except OSError:
        return ''
