"""Limits of this machine, or of the container of this process."""

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

NO_LIMIT = 1 << 20  # open files, where the system states no maximum
# Files of cgroup version 2, then of version 1.
MEMORY_LIMITS = ('memory.max', 'memory.high', 'memory.limit_in_bytes')
MEMORY_USAGE = ('memory.current', 'memory.usage_in_bytes')
# Version 1 excludes nested groups unless the name has `total_`; version 2 includes them.
RECLAIMABLE = ('total_inactive_file', 'inactive_file')
OOM_COUNTS = ('memory.events', 'memory.oom_control')


class Cpus(NamedTuple):
    """A number of usable CPUs, maybe fractional, and the source of that limit."""

    number: float
    source: str


class OpenFiles(NamedTuple):
    """Limits of open files of this process, and the number of open files."""

    soft: int
    hard: int
    used: int


@dataclass(frozen=True)
class Limits:
    """All limits at one moment; None where a limit is unknown.

    Attributes:
        cpus: CPUs for this process and its children.
        memory: Bytes that are free or can be reclaimed.
        shared_memory: Free bytes in /dev/shm.
        open_files: Limits of open files of this process.
        oom_kills: Number of OOM kills so far.
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
        """Return the present limits.

        Args:
            root: Root of the file systems, for tests. Defaults to '/'.
        """
        shm = shared_memory(root)
        without = 0 if sys.platform == 'linux' else None  # 0: no memory can be shared
        return cls(
            usable_cpus(root),
            available_memory(root),
            without if shm is None else shm['shm_free'],
            open_files(root),
            oom_kills(root),
        )


def usable_cpus(root: str = '/') -> Cpus:
    """Return the minimum of CPUs of the machine, affinity of the process, and cgroup quotas."""
    found = [Cpus(os.cpu_count() or 1, 'the machine')]
    if hasattr(os, 'sched_getaffinity'):
        found.append(Cpus(len(os.sched_getaffinity(0)), 'affinity'))
    for folder in control_groups('cpu', root):
        quota, _, period = read_file(folder, 'cpu.max').partition(' ')
        if not period:
            quota, period = (
                read_file(folder, 'cpu.cfs_quota_us'),
                read_file(folder, 'cpu.cfs_period_us'),
            )
        if parse_number(quota) and parse_number(period):
            found.append(Cpus(int(quota) / int(period), 'cgroup quota'))
    return min(found, key=lambda cpus: cpus.number)


def available_memory(root: str = '/') -> int | None:
    """Return the bytes available without swapping or an OOM kill; None where unknown."""
    found = [size for name, size in meminfo(root).items() if name == 'MemAvailable']
    for folder in control_groups('memory', root):
        found += [max(0, limit - used) for used, limit in group_memory(folder)]
    return min(found, default=None)


def meminfo(root: str) -> dict[str, int]:
    """Return the bytes that the kernel states by name; empty on systems without /proc."""
    lines = (line.split() for line in read_file(root, 'proc/meminfo').splitlines())
    return {line[0].rstrip(':'): 1024 * int(line[1]) for line in lines}


def group_memory(folder: str) -> list[tuple[int, int]]:
    """Return used bytes and limit, by limit of a control group.

    Cached files, which the kernel can reclaim, do not count as used.
    """
    stat = dict(line.split(' ', 1) for line in read_file(folder, 'memory.stat').splitlines())
    cached = next((int(stat[name]) for name in RECLAIMABLE if name in stat), 0)
    usage, limits = (
        [parse_number(read_file(folder, name)) for name in names]
        for names in (MEMORY_USAGE, MEMORY_LIMITS)
    )
    used = max(0, sum(filter(None, usage)) - cached)
    return [(used, limit) for limit in limits if limit is not None]


def shared_memory(root: str = '/') -> dict[str, int] | None:
    """Return `shm_free` and `shm_total`, the bytes of /dev/shm; None where it does not exist."""
    try:
        found = os.statvfs(os.path.join(root, 'dev/shm'))
    except (AttributeError, OSError):  # Windows has no statvfs
        return None
    return dict(shm_free=found.f_frsize * found.f_bavail, shm_total=found.f_frsize * found.f_blocks)


def open_files(root: str = '/') -> OpenFiles | None:
    """Return limits and number of open files of this process; None on Windows."""
    if resource is None:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = parse_number(read_file(root, 'proc/sys/fs/nr_open')) or NO_LIMIT
    soft, hard = (most if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard))
    for folder in ('proc/self/fd', 'dev/fd'):
        try:
            used = (
                len(os.listdir(os.path.join(root, folder))) - 1
            )  # listing opens the folder itself
        except OSError:
            continue
        return OpenFiles(soft, hard, used)
    return OpenFiles(soft, hard, 0)


def raise_open_files(target: int) -> OpenFiles | None:
    """Raise the soft limit of open files of this process and later children.

    Args:
        target: The soft limit to reach, capped by the hard limit. A higher limit stays.

    Returns:
        The limits after the call; None where the system has none.
    """
    now = open_files()
    if resource is None or now is None:
        return None
    soft = min(target, now.hard)
    if soft > now.soft:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        except (OSError, ValueError):  # macOS has another, lower limit
            return now
    return open_files()


def oom_kills(root: str = '/') -> int | None:
    """Return the number of OOM kills in this control group, else on this machine."""
    sources = [(folder, name) for folder in control_groups('memory', root) for name in OOM_COUNTS]
    for folder, name in [*sources, (root, 'proc/vmstat')]:
        for line in read_file(folder, name).splitlines():
            if line.startswith('oom_kill '):
                return int(line.split()[1])
    return None


def control_groups(controller: str, root: str) -> Iterator[str]:
    """Yield the folders of the control groups of this process, innermost first.

    Both versions may be mounted, and a container may see its group as the root.
    """
    own = {}
    for line in read_file(root, 'proc/self/cgroup').splitlines():
        _, names, path = line.split(':', 2)
        own.update(dict.fromkeys(names.split(','), path))
    for line in read_file(root, 'proc/self/mountinfo').splitlines():
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
        if inner.startswith('..'):  # the group is outside of the mount
            inner = '.'
        top = os.path.join(root, mounted.lstrip('/'))
        while inner not in ('', '.'):
            yield os.path.join(top, inner)
            inner = os.path.dirname(inner)
        yield top


def parse_number(text: str) -> int | None:
    """Parse a number; return None for 'max', -1 and an empty text."""
    return int(text) if text.isdecimal() else None


def read_file(folder: str, name: str) -> str:
    """Read a file; return '' where it does not exist or cannot be read."""
    try:
        with open(os.path.join(folder, name), encoding='utf-8') as file:
            return file.read().strip()
    except OSError:
        return ''
