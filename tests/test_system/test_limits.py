"""Limits of a machine, from fake file systems and real processes with real limits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from mmtempo.system import limits as host_limits
from mmtempo.system.limits import Cpus, Limits, OpenFiles
from tests.testing.cgroups import v1, v2
from tests.testing.limits import in_small_shm, low_nofile

MB = 1 << 20
# The module alone: importing the package takes seconds.
ALONE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location('host_limits', sys.argv[1])
host_limits = sys.modules['host_limits'] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(host_limits)
"""

Tree = Callable[..., str]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    """Create files of a machine with 16 CPUs, 12 of them for this process."""
    monkeypatch.setattr(os, 'cpu_count', lambda: 16)
    monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(12)), raising=False)

    def make(**files: str) -> str:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + '\n')
        return str(tmp_path)

    return make


def alone(*code: str) -> list[str]:
    return [sys.executable, '-I', '-c', '\n'.join([ALONE, *code]), str(host_limits.__file__)]


def test_cpus_without_quota(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_limits.usable_cpus(tree()) == Cpus(12, 'affinity')
    monkeypatch.delattr(os, 'sched_getaffinity')
    assert host_limits.usable_cpus(tree()) == Cpus(16, 'the machine')
    monkeypatch.setattr(os, 'cpu_count', lambda: None)
    assert host_limits.usable_cpus(tree()) == Cpus(1, 'the machine')


@pytest.mark.parametrize(
    ('inner', 'outer', 'number'),
    [
        ('max 100000', 'max 100000', 12),
        ('250000 100000', 'max 100000', 2.5),
        ('400000 100000', '150000 50000', 3),  # the outer quota holds as well
        ('50000 100000', '800000 100000', 0.5),
        ('9900000 100000', 'max 100000', 12),  # more than the machine has
    ],
)
def test_cpu_quotas_of_version_2(inner: str, outer: str, number: float, tree: Tree) -> None:
    files = {'pod/cpu.max': outer, 'pod/job/cpu.max': inner, 'else/cpu.max': '1000 100000'}
    cpus = host_limits.usable_cpus(tree(**v2('/pod/job', **files)))
    assert cpus.number == number
    assert cpus.source == ('affinity' if number == 12 else 'cgroup quota')


@pytest.mark.parametrize(('quota', 'number'), [('-1', 12), ('350000', 3.5)])
def test_cpu_quotas_of_version_1(quota: str, number: float, tree: Tree) -> None:
    files = {
        'cpu,cpuacct/cpu.cfs_quota_us': quota,
        'cpu,cpuacct/cpu.cfs_period_us': '100000',
    }
    assert host_limits.usable_cpus(tree(**v1('/docker/a', '/docker/a', **files))).number == number


@pytest.mark.parametrize('group', ['/', '/../../else', '/gone'])
def test_unmounted_groups_fall_back_to_the_visible_root(group: str, tree: Tree) -> None:
    """The topmost visible group counts then."""
    root = tree(**v2(group, **{'cpu.max': '200000 100000'}))
    assert host_limits.usable_cpus(root).number == 2


def test_a_group_outside_of_the_mount(tree: Tree) -> None:
    """Folders above the mount are not groups."""
    files = {
        'cpu,cpuacct/cpu.cfs_quota_us': '350000',
        'cpu,cpuacct/cpu.cfs_period_us': '100000',
        'cpu.cfs_quota_us': '100000',
        'cpu.cfs_period_us': '100000',
    }
    assert host_limits.usable_cpus(tree(**v1('/else', '/docker/a', **files))).number == 3.5


def test_memory_of_version_2(tree: Tree) -> None:
    def available(**files: str) -> int | None:
        return host_limits.available_memory(tree(**v2('/pod/job', **files)))

    assert available() is None
    meminfo = 'MemTotal: 9000 kB\nMemFree: 1 kB\nMemAvailable: 8192 kB'
    tree(**{'proc/meminfo': meminfo})
    assert available() == 8 * MB
    usage = {'memory.current': str(5 * MB), 'memory.stat': f'anon 1\ninactive_file {2 * MB}'}
    job = {f'pod/job/{name}': text for name, text in usage.items()}
    assert available(**job, **{'pod/job/memory.max': 'max'}) == 8 * MB
    assert available(**{'pod/job/memory.max': str(9 * MB)}) == 6 * MB
    assert available(**{'pod/job/memory.high': str(7 * MB)}) == 4 * MB
    assert available(**{'pod/memory.max': str(9 * MB), 'pod/memory.current': str(8 * MB)}) == MB
    assert available(**{'pod/memory.max': str(2 * MB)}) == 0


def test_memory_of_version_1(tree: Tree) -> None:
    files = {
        'memory/memory.limit_in_bytes': str(9 * MB),
        'memory/memory.usage_in_bytes': str(5 * MB),
        'memory/memory.stat': f'inactive_file {MB}\ntotal_inactive_file {3 * MB}',
    }
    root = tree(**v1('/docker/a', '/docker/a', **files))
    assert host_limits.available_memory(root) == 7 * MB


def test_oom_kills(tree: Tree) -> None:
    assert host_limits.oom_kills(tree()) is None
    root = tree(**{'proc/vmstat': 'oom_kill 7\noom_kill_more 8'})
    assert host_limits.oom_kills(root) == 7
    oom_control = 'oom_kill_disable 0\nunder_oom 0\noom_kill 3'
    tree(**v1('/', '/', **{'memory/memory.oom_control': oom_control}))
    assert host_limits.oom_kills(root) == 3
    events = {'pod/job/memory.events': 'oom 9\noom_kill 2', 'pod/memory.events': 'oom_kill 5'}
    tree(**v2('/pod/job', **events))
    assert host_limits.oom_kills(root) == 2  # kills in other groups do not count


def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_limits.shared_memory(str(tmp_path)) is None
    monkeypatch.setattr(sys, 'platform', 'linux')
    assert Limits.of_this_machine(str(tmp_path)).shared_memory == 0  # no memory can be shared
    monkeypatch.setattr(sys, 'platform', 'darwin')
    assert Limits.of_this_machine(str(tmp_path)).shared_memory is None
    found = SimpleNamespace(f_frsize=4096, f_bavail=10, f_bfree=99, f_blocks=200)
    monkeypatch.setattr(os, 'statvfs', lambda path: found, raising=False)
    assert host_limits.shared_memory() == {'shm_free': 40960, 'shm_total': 819200}
    monkeypatch.delattr(os, 'statvfs')
    assert host_limits.shared_memory() is None


def test_a_real_small_shm() -> None:
    code = "print(host_limits.shared_memory()['shm_free'])"
    done = in_small_shm(alone(code), '64m')
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 64 * MB


@pytest.mark.skipif(host_limits.resource is None, reason='there are no such limits')
class TestOpenFiles:
    CODE = (
        'import os, resource',
        'files = [open(os.devnull) for _ in range(5)]',
        'print(*host_limits.open_files())',
        'print(*host_limits.raise_open_files(int(sys.argv[2])))',
        'print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])',
    )

    @pytest.mark.parametrize(
        ('target', 'soft'), [(1000, 1000), (4096, 4096), (1 << 30, 4096), (10, 64)]
    )
    def test_raised_for_real(self, target: int, soft: int) -> None:
        done = low_nofile([*alone(*self.CODE), str(target)], 64, 4096)
        assert done.returncode == 0, done.stderr
        before, after, now = done.stdout.splitlines()
        assert before.split()[:2] == ['64', '4096']
        assert 5 <= int(before.split()[2]) <= 20
        assert after.split()[:2] == [str(soft), '4096']
        assert int(now) == soft

    def test_used(self, tmp_path: Path, tree: Tree) -> None:
        root = tree(**{f'proc/self/fd/{number}': '' for number in range(4)})
        found = host_limits.open_files(root)
        assert found is not None
        assert found.used == 3  # listing opens the folder
        before = host_limits.open_files()
        assert before is not None
        with open(tmp_path / 'one', 'w'), open(tmp_path / 'two', 'w'):
            assert host_limits.open_files() == before._replace(used=before.used + 2)

    def test_no_limit_at_all(self, tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
        infinite = host_limits.resource.RLIM_INFINITY
        monkeypatch.setattr(host_limits.resource, 'getrlimit', lambda which: (infinite, infinite))
        root = tree()
        assert host_limits.open_files(root) == OpenFiles(1 << 20, 1 << 20, 0)
        tree(**{'proc/sys/fs/nr_open': '5000'})
        assert host_limits.open_files(root) == OpenFiles(5000, 5000, 0)

    def test_the_system_refuses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: object) -> None:
            raise ValueError('not allowed to raise maximum limit')

        monkeypatch.setattr(host_limits, 'open_files', lambda: OpenFiles(64, 4096, 3))
        monkeypatch.setattr(host_limits.resource, 'setrlimit', refuse)
        assert host_limits.raise_open_files(1000) == OpenFiles(64, 4096, 3)


def test_unknown_limits_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has no /proc, resource, affinity or statvfs."""
    monkeypatch.setattr(host_limits, 'resource', None)
    monkeypatch.setattr(sys, 'platform', 'win32')
    monkeypatch.delattr(os, 'sched_getaffinity', raising=False)
    monkeypatch.delattr(os, 'statvfs', raising=False)
    limits = Limits.of_this_machine(str(tmp_path))
    assert limits.cpus == Cpus(os.cpu_count() or 1, 'the machine')
    known = (limits.memory, limits.shared_memory, limits.open_files, limits.oom_kills)
    assert known == (None, None, None, None)
    assert host_limits.raise_open_files(4096) is None


def test_imports_without_resource() -> None:
    code = "import sys; sys.modules['resource'] = None"
    command = alone('print(host_limits.open_files())')
    command[3] = f'{code}\n{command[3]}'
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == 'None\n', done.stderr


@pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')
def test_this_machine() -> None:
    limits = Limits.of_this_machine()
    assert 0 < limits.cpus.number <= (os.cpu_count() or 1)
    total = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    assert limits.memory is not None
    assert 0 < limits.memory < total
    assert limits.open_files is not None
    assert 0 < limits.open_files.used < limits.open_files.soft <= limits.open_files.hard
