"""Readings from fake file systems, and from this machine with real forks."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from mmtempo.system import readings as machine_readings
from mmtempo.system.limits import control_groups
from mmtempo.system.readings import (
    GpuReading,
    MachineReadings,
    RateLimited,
    cpu_time,
    device_memory,
    family_of,
    memory,
    pressure,
    swapping,
    throttling,
    tree_memory,
)
from tests.testing.cgroups import v1, v2
from tests.testing.processes import FORK

MB = 1 << 20
MEMINFO = """
MemTotal:        {total} kB
MemFree:         100 kB
MemAvailable:    {available} kB
SwapTotal:       8000 kB
SwapFree:        6000 kB
Dirty:           300 kB
Writeback:       20 kB
HugePages_Total: 0
"""
STALLED = (
    'some avg10=1.00 avg60=2.00 avg300=3.00 total={}\n'
    'full avg10=0.00 avg60=0.00 avg300=0.00 total=77'
)
linux_only = pytest.mark.skipif(sys.platform != 'linux', reason='reads /proc')

Tree = Callable[..., str]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(sys, 'platform', 'linux')

    def make(**files: str) -> str:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.strip() + '\n')
        return str(tmp_path)

    return make


def meminfo(total: int, available: int) -> dict[str, str]:
    """Return meminfo; arguments in MiB."""
    return {'proc/meminfo': MEMINFO.format(total=total << 10, available=available << 10)}


def groups(controller: str, root: str) -> list[str]:
    return list(control_groups(controller, root))


class TestMemory:
    def test_of_the_machine(self, tree: Tree) -> None:
        assert memory(tree(**meminfo(100, 25))) == {
            'ram_used': 0.75,
            'ram_total': 100 * MB,
            'ram_of': 'the machine',
            'swap_used': 2000 << 10,
            'dirty': 300 << 10,
            'writeback': 20 << 10,
        }

    @pytest.mark.parametrize(
        ('inner', 'outer', 'used', 'total'),
        [
            ('max', 'max', 0.75, 100),
            (50 * MB, 'max', 0.8, 50),  # 42 less 2 that are reclaimable
            (80 * MB, 'max', 0.75, 100),  # the machine is closer to its limit
            (80 * MB, 60 * MB, 0.9, 60),
        ],
    )
    def test_of_version_2(
        self, inner: object, outer: object, used: float, total: int, tree: Tree
    ) -> None:
        files = {
            'pod/job/memory.max': str(inner),
            'pod/job/memory.current': str(42 * MB),
            'pod/job/memory.stat': f'anon 1\ninactive_file {2 * MB}',
            'pod/memory.max': str(outer),
            'pod/memory.current': str(54 * MB),
        }
        root = tree(**v2('/pod/job', **files), **meminfo(100, 25))
        found = memory(root, groups('memory', root))
        assert found is not None
        assert (found['ram_used'], found['ram_total']) == (used, total * MB)
        assert found['ram_of'] == ('the machine' if total == 100 else 'the container')

    def test_of_version_1(self, tree: Tree) -> None:
        files = {
            'memory/memory.limit_in_bytes': str(10 * MB),
            'memory/memory.usage_in_bytes': str(11 * MB),
            'memory/memory.stat': f'inactive_file 1\ntotal_inactive_file {2 * MB}',
        }
        root = tree(**v1('/docker/a', '/docker/a', **files), **meminfo(100, 25))
        found = memory(root, groups('memory', root))
        assert found is not None
        assert (found['ram_used'], found['ram_total']) == (0.9, 10 * MB)

    def test_a_group_without_room_or_figures(self, tree: Tree) -> None:
        files = {'a/memory.max': '0', 'memory.max': str(9 * MB)}
        root = tree(**v2('/a', **files), **meminfo(100, 25))
        found = memory(root, groups('memory', root))
        assert found is not None
        assert found['ram_total'] == 100 * MB

    def test_unknown(self, tree: Tree) -> None:
        assert memory(tree()) is None
        assert memory(tree(**{'proc/meminfo': 'MemTotal: 5 kB'})) is None
        found = memory(tree(**{'proc/meminfo': 'MemTotal: 5 kB\nMemAvailable: 1 kB'}))
        assert found == {'ram_used': 0.8, 'ram_total': 5 << 10, 'ram_of': 'the machine'}

    @pytest.mark.parametrize('platform', ['darwin', 'win32'])
    def test_elsewhere(self, platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, 'platform', platform)
        virtual = SimpleNamespace(total=8 * MB, available=2 * MB)
        monkeypatch.setattr(psutil, 'virtual_memory', lambda: virtual)
        monkeypatch.setattr(psutil, 'swap_memory', lambda: SimpleNamespace(used=5, sin=6, sout=7))
        assert memory() == {
            'ram_used': 0.75,
            'ram_total': 8 * MB,
            'ram_of': 'the machine',
            'swap_used': 5,
        }
        moved = {'swap_in': 6, 'swap_out': 7} if platform == 'darwin' else None
        assert swapping('/nowhere') == moved


def test_swapping(tree: Tree) -> None:
    assert swapping(tree()) is None
    vmstat = 'nr_free 1\npswpin 3\npswpout 4\nswap_ra 9\nswpin_zero 8'
    root = tree(**{'proc/vmstat': vmstat})
    page = mmap.PAGESIZE
    assert swapping(root) == {'swap_in': 3 * page, 'swap_out': 4 * page}
    tree(**{'proc/vmstat': f'{vmstat}\nzswpin 10\nzswpout 20\nzswpwb 30'})
    assert swapping(root) == {'swap_in': 13 * page, 'swap_out': 24 * page}


def test_pressure(tree: Tree) -> None:
    """The innermost group with a pressure file counts."""
    assert pressure(tree()) is None
    machine = {f'proc/pressure/{what}': STALLED.format(9000000) for what in ('cpu', 'memory', 'io')}
    root = tree(**machine)
    assert pressure(root) == {'psi_cpu': 9, 'psi_memory': 9, 'psi_io': 9}
    files = {
        'pod/memory.pressure': STALLED.format(4000000),
        'pod/job/memory.pressure': STALLED.format(2500000),
        'pod/io.pressure': STALLED.format(1000000),
    }
    tree(**v2('/pod/job', **files))
    found = pressure(root, groups('cpu', root))
    assert found == {'psi_cpu': 9, 'psi_memory': 2.5, 'psi_io': 1}


def test_disabled_pressure_is_none(tree: Tree) -> None:
    """The files exist, but reading them fails."""
    root = tree()
    for what in ('cpu', 'memory', 'io'):
        os.makedirs(f'{root}/proc/pressure/{what}')
    assert pressure(root) is None


def test_throttling(tree: Tree) -> None:
    assert throttling([]) is None
    root = tree(**v2('/pod/job', **{'cpu.stat': 'usage_usec 5'}))
    assert throttling(groups('cpu', root)) is None
    stat = 'usage_usec 5\nnr_throttled 2\nthrottled_usec {}\nburst_usec 7'
    tree(
        **{
            'sys/fs/cgroup/pod/job/cpu.stat': stat.format(1500000),
            'sys/fs/cgroup/pod/cpu.stat': stat.format(250000),
        }
    )
    assert throttling(groups('cpu', root)) == {'throttled': 1.75}


def test_throttling_of_version_1(tree: Tree) -> None:
    stat = 'nr_periods 0\nnr_throttled 3\nthrottled_time 2500000000'
    root = tree(**v1('/docker/a', '/docker/a', **{'cpu,cpuacct/cpu.stat': stat}))
    assert throttling(groups('cpu', root)) == {'throttled': 2.5}


class TestTree:
    @linux_only
    def test_children_and_theirs(self) -> None:
        """A child forked from another thread, and its child, share memory."""
        before = tree_memory(os.getpid())
        here, there = FORK.Pipe()
        child = FORK.Process(target=parent_of_one, args=(there,))
        child.start()
        there.close()
        grandchild = here.recv()
        family = family_of(os.getpid())
        during = tree_memory(os.getpid())
        here.send('end')
        child.join(30)
        assert family[0] == os.getpid()
        assert {child.pid, grandchild} <= set(family)
        assert len(family) == len(set(family))
        assert during['tree_processes'] == before['tree_processes'] + 2
        assert during['tree_pss'] - before['tree_pss'] > 0.9 * OWN_BYTES
        assert not {child.pid, grandchild} & set(family_of(os.getpid()))

    @linux_only
    def test_without_smaps_rollup_resident_memory_is_used(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, there = FORK.Pipe()
        child = FORK.Process(target=parent_of_one, args=(there,))
        child.start()
        there.close()
        grandchild = here.recv()
        monkeypatch.setattr(os.path, 'exists', lambda path: False)
        family = family_of(os.getpid())
        monkeypatch.setattr(machine_readings, 'read_file', lambda *place: '')
        during = tree_memory(os.getpid())
        monkeypatch.undo()
        here.send('end')
        child.join(30)
        assert sorted(family) == sorted({*family, os.getpid(), child.pid, grandchild})
        assert set(during) == {'tree_rss', 'tree_processes'}
        assert during['tree_processes'] == len(family)
        assert during['tree_rss'] > OWN_BYTES

    def test_an_exited_process_is_skipped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes = {10: 100, 11: None, 12: 30}
        asked = []

        def pss(pid: int) -> int | None:
            asked.append(pid)
            return sizes[pid]

        monkeypatch.setattr(machine_readings, 'family_of', lambda pid: [10, 11, 12])
        monkeypatch.setattr(machine_readings, '_pss', pss)
        assert tree_memory(10) == {'tree_pss': 130, 'tree_processes': 2}
        assert asked[-1] == 10  # otherwise pages that a child maps meanwhile would count twice

    def test_sizes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rollup = 'Rss: 900 kB\nPss: 12 kB\nPss_Anon: 5 kB\nSwapPss: 7 kB'
        monkeypatch.setattr(machine_readings, 'family_of', lambda pid: [pid])
        monkeypatch.setattr(machine_readings, 'read_file', lambda *place: rollup)
        assert tree_memory(1) == {'tree_pss': 12 << 10, 'tree_processes': 1}


OWN_BYTES = 8 * MB


def parent_of_one(pipe: Any) -> None:
    """Start a child in another thread, as loaders do; all run until released."""
    kept = bytearray(os.urandom(1) * OWN_BYTES)
    inner, outer = FORK.Pipe()
    child = FORK.Process(target=wait, args=(outer,))
    started, end = threading.Event(), threading.Event()

    def start() -> None:
        child.start()
        started.set()
        end.wait()

    threading.Thread(target=start).start()
    started.wait()
    outer.close()
    inner.recv()
    pipe.send(child.pid)
    pipe.recv()
    inner.send(len(kept))
    child.join()
    end.set()


def wait(pipe: Any) -> None:
    pipe.send('here')
    pipe.recv()


class TestSeldom:
    @pytest.fixture
    def clock(self) -> SimpleNamespace:
        return SimpleNamespace(now=0.0)

    @pytest.mark.parametrize(('takes', 'rest'), [(0.001, 10), (0.5, 50)])
    def test_rests(self, takes: float, rest: float, clock: SimpleNamespace) -> None:
        """Ten seconds, or a hundred times the duration of a reading."""
        times = []

        def reading() -> dict:
            times.append(clock.now)
            clock.now += takes
            return {'n': len(times)}

        seldom = RateLimited(reading, clock=lambda: clock.now)
        assert seldom() == {'n': 1}
        ended = clock.now
        clock.now = ended + rest - 0.01
        assert seldom() == {'n': 1}
        clock.now = ended + rest
        assert seldom() == {'n': 2}
        assert times == [0.0, ended + rest]


class Module:
    """A fake of torch.cuda."""

    def __init__(self, is_begun: bool = True, stats: dict[str, int] | None = None) -> None:
        self.is_begun, self.stats = is_begun, stats or {}
        self.asked: list[torch.device] = []

    def is_initialized(self) -> bool:
        return self.is_begun

    def memory_stats(self, device: torch.device) -> dict[str, int]:
        assert self.is_begun
        self.asked.append(device)
        return self.stats

    def get_device_properties(self, device: torch.device) -> SimpleNamespace:
        assert self.is_begun
        self.asked.append(device)
        return SimpleNamespace(uuid='abc')


class TestDevice:
    device = torch.device('cuda', 1)

    def test_allocator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stats = {
            'allocated_bytes.all.current': 5,
            'allocated_bytes.all.peak': 50,
            'reserved_bytes.all.current': 9,
            'num_alloc_retries': 2,
        }
        module = Module(stats=stats)
        monkeypatch.setattr(torch, 'cuda', module)
        figures = {'allocated': 5, 'reserved': 9, 'retries': 2}
        assert device_memory(self.device) == {'device': figures}
        assert module.asked == [self.device]
        del module.stats['num_alloc_retries']
        assert device_memory(self.device) == {'device': {'allocated': 5, 'reserved': 9}}

    def test_devices_are_not_initialized(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch, 'cuda', Module(is_begun=False))
        gpu = GpuReading(self.device)
        assert device_memory(self.device) is None
        assert gpu() is None
        gpu.close()

    def test_cuda_is_not_initialized(self) -> None:
        assert device_memory(self.device) is None
        assert GpuReading(self.device)() is None
        assert device_memory(torch.device('mps', 0)) is None
        assert device_memory(torch.device('cpu')) is None
        assert not torch.cuda.is_initialized()

    def test_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The GPU that torch uses is read once torch has initialized it."""
        made = []

        class FakeNvml:
            def __init__(self, index: int, properties: Any) -> None:
                made.append((index, properties.uuid))

            def read(self) -> dict:
                return {'power': 200.0} if made else {}

            def close(self) -> None:
                made.clear()

        monkeypatch.setattr(machine_readings, 'Nvml', FakeNvml)
        module = Module(is_begun=False)
        monkeypatch.setattr(torch, 'cuda', module)
        readings = MachineReadings(self.device)
        gpu = readings.parts['GPU']
        assert gpu() is None
        module.is_begun = True
        assert gpu() == gpu() == {'device': {'power': 200.0}}
        assert made == [(1, 'abc')]
        readings.close()
        assert gpu() is None


def test_parts_depend_on_the_device() -> None:
    parts = set(MachineReadings().parts)
    assert set(MachineReadings(torch.device('cpu')).parts) == parts
    assert set(MachineReadings(torch.device('xpu', 0)).parts) == {*parts, 'device memory'}
    assert set(MachineReadings(torch.device('cuda', 0)).parts) == {*parts, 'device memory', 'GPU'}


@linux_only
def test_this_machine() -> None:
    readings = MachineReadings()
    found: dict[str, Any] = {}
    for reading in readings.parts.values():
        found |= reading() or {}
    readings.close()
    assert 0 < found['ram_used'] < 1
    assert 0 < found['ram_total'] <= os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    assert 0 < found['main_rss'] < found['ram_total']
    assert 0 < found['tree_pss'] < found['ram_total']
    assert found['tree_processes'] >= 1
    assert found['swap_in'] >= 0
    assert 0 <= found['shm_free'] <= found['shm_total']


def test_unknown_readings_are_none(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system without /proc and cgroups."""
    monkeypatch.delattr(os, 'statvfs', raising=False)
    parts = MachineReadings(root=tree()).parts
    named = ('RAM', 'swapping', '/dev/shm', 'pressure', 'CPU time', 'CPU quota')
    assert [parts[name]() for name in named] == [None] * 6


def cpu_files(
    tree: Tree, pid: int, busy: int, idle: int, own: tuple, queued: int | None = 7
) -> str:
    """Return the root of the figures of the cores of this process, and of one other core."""
    # user, nice, system, idle, iowait, irq, softirq, steal, guest, guest_nice
    line = f'{busy - 6} 1 2 {idle - 4} 4 1 1 1 500 0'
    cores = sorted(os.sched_getaffinity(pid))
    stat = ['cpu  1 2 3', *(f'cpu{core} {line}' for core in cores)]
    stat.append(f'cpu{max(cores) + 1} 9 9 9 9 9 9 9 9')
    user, system, ended_user, ended_system = own
    files = {
        'proc/stat': '\n'.join([*stat, 'intr 5']),
        f'proc/{pid}/stat': f'{pid} (a ) b) S {" 0" * 10} {user} {system} {ended_user} '
        f'{ended_system} 20 0',
    }
    if queued is not None:
        files[f'proc/{pid}/schedstat'] = f'5000 {queued * 10**9} 77'
    return tree(**files)


@linux_only
def test_cpu_time_is_that_of_the_cores_and_the_family(tree: Tree) -> None:
    pid, tick, cores = os.getpid(), os.sysconf('SC_CLK_TCK'), len(os.sched_getaffinity(0))
    reader, writer = os.pipe()
    child = FORK.Process(target=os.read, args=(reader, 1), daemon=True)
    child.start()
    try:
        root = cpu_files(tree, pid, busy=70, idle=30, own=(40, 5, 3, 2))
        expected = dict(cpu_all=100 * cores / tick, cpu_busy=70 * cores / tick, queued=7.0)
        assert cpu_time(pid, root) == pytest.approx(dict(expected, cpu_own=50 / tick))
        tree(**{f'proc/{child.pid}/stat': f'{child.pid} (w) S {" 0" * 10} 6 1 0 0 20'})
        assert cpu_time(pid, root) == pytest.approx(dict(expected, cpu_own=57 / tick))
    finally:
        os.write(writer, b'.')
        child.join()
        os.close(reader)
        os.close(writer)


@linux_only
def test_cpu_time_without_figures(tree: Tree) -> None:
    pid = os.getpid()
    assert cpu_time(pid, tree()) is None
    found = cpu_time(pid, cpu_files(tree, pid, 70, 30, (1, 1, 1, 1), queued=None))
    assert found is not None
    assert 'queued' not in found


@linux_only
def test_cpu_time_of_this_machine() -> None:
    """The time of a process that computes is within that of its cores."""
    first = cpu_time(os.getpid())
    end = os.times().user + 0.2
    while os.times().user < end:
        pass
    last = cpu_time(os.getpid())
    assert first is not None
    assert last is not None
    grown = {name: last[name] - first[name] for name in ('cpu_all', 'cpu_busy', 'cpu_own')}
    assert 0.1 < grown['cpu_own'] <= grown['cpu_all']
    assert grown['cpu_busy'] <= grown['cpu_all']
