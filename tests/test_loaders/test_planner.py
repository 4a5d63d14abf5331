"""What is chosen, what is lowered, and what is said about it."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from mmtempo.loaders import plan as loader_plan
from mmtempo.loaders.plan import LoaderPlan
from mmtempo.loaders.planner import check_sample_bytes, count_segments, plan_loader
from mmtempo.loaders.worker_errors import why_os_error, why_worker_died
from mmtempo.system.limits import Cpus, Limits, OpenFiles
from tests.testing.limits import in_small_shm

MB, GB = 1 << 20, 1 << 30
UNKNOWN = Limits(Cpus(1, 'the machine'))
KEYS = ('num_workers', 'prefetch_factor', 'pin_memory', 'persistent_workers')


def limits(cpus: float = 8, source: str = 'affinity', **others: Any) -> Limits:
    """Of a machine that has enough of everything."""
    given = dict(
        memory=64 * GB,
        shared_memory=32 * GB,
        open_files=OpenFiles(65536, 65536, 50),
        oom_kills=0,
        platform='linux',
    )
    return Limits(Cpus(cpus, source), **{**given, **others})


def plan(cfg: dict | None = None, machine: Limits | None = None, **others: Any) -> LoaderPlan:
    given = dict(
        sample_bytes=3 * MB,
        batch_size=2,
        start_method='fork',
        has_accelerator=True,
        local_world_size=1,
    )
    return plan_loader(cfg or {}, limits=machine or limits(), **{**given, **others})


def numbers(found: LoaderPlan) -> tuple[int, int | None]:
    return found.num_workers, found.prefetch_factor


@pytest.mark.parametrize('value', ['missing', None, 'auto'])
def test_what_is_left_open_is_chosen(value: Any) -> None:
    found = plan({} if value == 'missing' else dict.fromkeys((*KEYS, 'timeout'), value))
    assert [getattr(found, key) for key in KEYS] == [7, 2, True, True]
    assert found.timeout is None
    assert found.warnings == []


def test_what_is_given_is_kept() -> None:
    given = dict(num_workers=3, prefetch_factor=5, pin_memory=False, persistent_workers=False)
    found = plan({**given, 'timeout': 1.5, 'batch_size': 2, 'dataset': {}})
    assert {key: getattr(found, key) for key in KEYS} == given
    assert found.timeout == 1.5
    assert found.warnings == []


def test_no_workers() -> None:
    """mmengine's configs have it so; torch refuses what is of no use then."""
    found = plan(dict(num_workers=0, persistent_workers=True, prefetch_factor=4))
    assert [getattr(found, key) for key in KEYS] == [0, None, True, False]
    assert 'of no use without workers' in found.describe()
    assert found.warnings == []
    assert found.needs.shared_memory == found.needs.files == 0


def test_nothing_is_pinned_without_accelerator() -> None:
    found = plan(dict(pin_memory=True), has_accelerator=False)
    assert not found.pin_memory
    assert found.warnings == []
    assert 'there is no accelerator' in found.describe()
    assert not plan(has_accelerator=False).pin_memory
    assert 'accelerator' not in plan(has_accelerator=False).describe()


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        *(('num_workers', value) for value in (-1, True, 2.0, '4', [1])),
        *(('prefetch_factor', value) for value in (0, -2, True, 1.5, 'all')),
        *(('pin_memory', value) for value in (1, 'yes')),
        *(('persistent_workers', value) for value in (0, 'no')),
        *(('timeout', value) for value in (-1, True, '5', float('nan'))),
    ],
)
def test_wrong_values(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f'val_dataloader.{key}={value!r}'.replace('[', '.')):
        plan({key: value}, name='val_dataloader')


@pytest.mark.parametrize(
    ('cpus', 'world', 'workers'),
    [(8, 1, 7), (8, 2, 3), (8, 8, 1), (4, 8, 1), (1, 1, 1), (0.5, 1, 1), (3.9, 1, 2), (128, 1, 16)],
)
def test_workers_by_cpus(cpus: float, world: int, workers: int) -> None:
    found = plan(None, limits(cpus), local_world_size=world)
    assert found.num_workers == workers
    assert found.warnings == []


def test_more_workers_than_cpus() -> None:
    assert plan(dict(num_workers=4), limits(8), local_world_size=2).warnings == []
    found = plan(dict(num_workers=5), limits(8), local_world_size=2)
    assert found.num_workers == 5
    (warning,) = found.warnings
    assert "num_workers=5: 10 workers on this node have 8 usable CPUs (affinity); 'auto'" in warning


@pytest.mark.parametrize(
    ('method', 'platform', 'expected'),
    [
        ('fork', 'linux', (15, 2)),
        ('spawn', 'linux', (4, 2)),
        ('forkserver', 'linux', (4, 2)),
        ('spawn', 'darwin', (4, 2)),
        ('spawn', 'win32', (2, 1)),
    ],
)
def test_spawned_workers_are_fewer(method: str, platform: str, expected: tuple[int, int]) -> None:
    machine = limits(16, platform=platform)
    assert numbers(plan(None, machine, start_method=method)) == expected
    given = dict(num_workers=9, prefetch_factor=3)
    assert numbers(plan(given, machine, start_method=method)) == (9, 3)


# Six megabytes a batch. Pinned, one batch beyond the workers' lies in /dev/shm; else four.
@pytest.mark.parametrize(
    ('free', 'pinned', 'expected'),
    [
        (58, True, (4, 2)),  # 9 batches and 4 MB
        (57, True, (4, 1)),
        (34, True, (4, 1)),
        (33, True, (3, 1)),
        (16, True, (1, 1)),
        (15, True, (0, None)),
        (0, True, (0, None)),
        (76, False, (4, 2)),
        (75, False, (4, 1)),
    ],
)
def test_shared_memory(free: int, pinned: bool, expected: tuple[int, int | None]) -> None:
    cfg = dict(num_workers=4, prefetch_factor=2)
    found = plan(cfg, limits(shared_memory=free * MB), has_accelerator=pinned)
    assert numbers(found) == expected
    if expected == (4, 2):
        assert found.warnings == []
    else:
        (warning,) = found.warnings
        assert f'/dev/shm: {free} ' in warning
        assert '--shm-size=1g, or --ipc=host' in warning
    assert found.persistent_workers == bool(found.num_workers)


def test_shared_memory_is_of_all_processes() -> None:
    cfg = dict(num_workers=4, prefetch_factor=2)
    assert plan(cfg, limits(shared_memory=116 * MB), local_world_size=2).warnings == []
    found = plan(cfg, limits(shared_memory=115 * MB), local_world_size=2)
    assert numbers(found) == (4, 1)
    assert 'for each process' in found.warnings[0]


def test_how_much_shared_memory_a_container_needs() -> None:
    found = plan(dict(num_workers=8), limits(shared_memory=64 * MB), sample_bytes=100 * MB)
    assert numbers(found) == (0, None)
    assert '--shm-size=8g' in found.warnings[0]  # 3.3 GB, twice


def test_no_shared_memory_at_all() -> None:
    """Linux without /dev/shm, and a size that is not known."""
    assert plan(None, limits(shared_memory=0), sample_bytes=None).num_workers == 0
    assert plan(None, limits(shared_memory=None)).num_workers == 7  # macOS


def test_memory_of_workers() -> None:
    machine = limits(memory=4 * GB)
    assert plan(None, machine).num_workers == 7
    found = plan(None, machine, worker_bytes=GB)
    assert numbers(found) == (3, 2)  # with some to spare
    assert found.warnings == []  # it was for us to choose
    assert 'num_workers 7 -> 3' in found.describe()
    found = plan(dict(num_workers=7), machine, worker_bytes=GB)
    assert found.num_workers == 3
    assert 'num_workers 7 -> 3' in found.warnings[0]
    # A worker that is spawned imports everything once more.
    assert plan(dict(num_workers=7), machine, start_method='spawn').num_workers == 6
    assert plan(dict(num_workers=7), machine, local_world_size=2).warnings != []


def test_given_numbers_may_use_all_memory() -> None:
    machine, others = limits(memory=1024 * MB), dict(worker_bytes=400 * MB)
    assert plan(None, machine, **others).num_workers == 1
    assert plan(dict(num_workers=2), machine, **others).num_workers == 2


def test_memory_of_batches() -> None:
    machine, cfg = limits(memory=2 * GB), dict(num_workers=4, prefetch_factor=4)
    assert numbers(plan(cfg, machine, sample_bytes=60 * MB)) == (4, 2)  # 12 of 120 MB, and 400 MB
    # What is given stays as long as something else can give way.
    found = plan(dict(prefetch_factor=4), machine, sample_bytes=60 * MB)
    assert numbers(found) == (2, 4)
    assert 'num_workers 7 -> 2' in found.warnings[0]


def test_a_batch_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match='train_dataloader.batch_size: one batch has 6 GB, and 5'):
        plan(dict(num_workers=0), limits(memory=5 * GB), sample_bytes=3 * GB)
    assert plan(dict(num_workers=0), limits(memory=7 * GB), sample_bytes=3 * GB).num_workers == 0


@pytest.mark.parametrize(
    ('soft', 'hard', 'segments', 'expected', 'raised'),
    [
        (1024, 4096, 4, (4, 2), None),
        (1024, 4096, 60, (4, 2), 4096),
        (1024, 65536, 60, (4, 2), 4096),
        (1024, 65536, 400, (4, 2), 7468),  # twice what it needs
        (65536, 65536, 400, (4, 2), None),
        (1024, 1024, 100, (4, 1), None),
        (64, 700, 100, (4, 1), 700),
        (1024, 1024, 400, (1, 1), None),
        (1024, 1024, 500, (0, None), None),
    ],
)
def test_open_files(
    soft: int, hard: int, segments: int, expected: tuple, raised: int | None
) -> None:
    cfg, machine = dict(num_workers=4), limits(open_files=OpenFiles(soft, hard, 50))
    found = plan(cfg, machine, segments_per_batch=segments)
    assert (*numbers(found), found.open_files) == (*expected, raised)
    assert bool(found.warnings) == (expected != (4, 2))
    if found.warnings:
        assert f'open files: at most {hard} (hard limit)' in found.warnings[0]
        assert 'ulimit -n' in found.warnings[0]
    if raised:
        assert f'open files: {soft} -> {raised}' in found.describe()


def test_open_files_where_tensors_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    multiprocessing = torch.multiprocessing
    monkeypatch.setattr(multiprocessing, 'get_sharing_strategy', lambda: 'file_system')
    found = plan(None, limits(open_files=OpenFiles(64, 64, 60)), segments_per_batch=100)
    assert (*numbers(found), found.open_files) == (7, 2, None)


def test_the_limit_is_raised_when_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(loader_plan, 'raise_open_files', calls.append)
    plan().apply()
    found = plan(None, limits(open_files=OpenFiles(64, 4096, 10)))
    assert calls == []
    found.apply()
    assert calls == [4096]


def test_two_loaders_at_a_time() -> None:
    """Workers of training and validation both stay."""
    machine = limits(shared_memory=100 * MB, open_files=OpenFiles(1024, 1024, 50), memory=4 * GB)
    first = plan(dict(num_workers=4), machine)
    left = first.left(machine)
    assert left.shared_memory == (100 - 9 * 6 - 4) * MB
    assert left.memory == 4 * GB - 4 * 100 * MB - 12 * 6 * MB
    assert left.open_files == OpenFiles(1024, 1024, 50 + 4 * 5 + 9 * 4)
    assert left.cpus == machine.cpus
    second = plan(dict(num_workers=4), left, name='val_dataloader')
    assert numbers(second) == (4, 1)
    assert first.left(UNKNOWN) == UNKNOWN


def test_description() -> None:
    """In one block: the numbers, why, and what is wrong."""
    machine = limits(
        8,
        'cgroup quota',
        memory=36 * GB,
        shared_memory=64 * MB,
        open_files=OpenFiles(256, 4096, 100),
    )
    text = plan(None, machine, local_world_size=2, sample_bytes=MB).describe()
    assert text.splitlines() == [
        'train_dataloader: 3 workers x 2 batches ahead, pinned, persistent',
        "  num_workers='auto': 8 usable CPUs (cgroup quota), 2 processes on this node -> 4 each, "
        '1 kept for the training -> 3',
        '  memory: 10 batches of 2 MB in flight = 20 MB, 3 forked x about 100 MB; '
        '18 GB available for each process',
        '  /dev/shm: 32 MB free for each process, needs 18 MB',
        '  open files: 256 -> 4096 (hard limit)',
    ]
    text = plan(dict(num_workers=4, persistent_workers=False), machine).describe()
    assert text.splitlines()[0] == 'train_dataloader: 4 workers x 2 batches ahead, pinned'
    text = plan(dict(num_workers=5), machine, has_accelerator=False).describe()
    assert text.splitlines()[0] == 'train_dataloader: 5 workers x 1 batch ahead, persistent'
    assert text.splitlines()[-1] == (
        '  WARNING: /dev/shm: 64 MB free, needs 88 MB -> prefetch_factor 2 -> 1 '
        '(give the container --shm-size=1g, or --ipc=host)'
    )
    machine = limits(shared_memory=8 * MB)
    text = plan(None, machine, sample_bytes=MB).describe()
    assert text.startswith('train_dataloader: 1 worker x 1 batch ahead, pinned, persistent\n')
    assert 'prefetch_factor 2 -> 1, num_workers 7 -> 1 (' in text
    assert plan(dict(num_workers=0)).describe().startswith('train_dataloader: no workers, ')


def test_this_machine_is_what_counts() -> None:
    found = plan_loader(
        dict(num_workers=0),
        sample_bytes=None,
        batch_size=1,
        start_method='fork',
        has_accelerator=False,
        local_world_size=1,
    )
    assert found.num_workers == 0


def test_bytes_of_a_sample() -> None:
    image = torch.zeros(3, 4, 5, dtype=torch.uint8)
    label = PixelData(data=torch.zeros(1, 4, 5, dtype=torch.int64))
    element = BaseDataElement(gt_sem_seg=label, metainfo=dict(img_path='a', size=(4, 5)))
    sample = dict(inputs=image, data_samples=element, points=np.zeros((7, 2)), name='a', index=3)
    assert check_sample_bytes(sample) == 60 + 160 + 112
    assert check_sample_bytes([sample, (sample['points'],), None]) == 332
    assert count_segments(sample) == 2
    empty = torch.zeros(0)
    assert (check_sample_bytes(empty), count_segments(empty)) == (0, 0)


def test_views_count_once() -> None:
    packed = torch.zeros(4, 10, dtype=torch.uint8)
    batch = dict(labels=packed, data_samples=list(packed.unbind()))
    assert (check_sample_bytes(batch), count_segments(batch)) == (40, 1)
    assert check_sample_bytes(packed[1]) == 10  # stacked it is that much
    assert check_sample_bytes(list(packed.unbind())) == 40


def test_why_killed() -> None:
    before, after = limits(oom_kills=1), limits(oom_kills=3)
    text = why_worker_died(-9, oom_before=1, limits=after)
    assert text.startswith('SIGKILL: by the OOM killer, which has struck 2 x')
    assert 'num_workers' in text
    text = why_worker_died(-9, oom_before=1, limits=before)
    assert text.startswith('SIGKILL: by somebody; the OOM killer has not')
    assert '64 GB available' in text
    for known in (dict(oom_before=None, limits=before), dict(oom_before=1, limits=UNKNOWN)):
        text = why_worker_died(-9, **known)
        assert text.startswith('SIGKILL: by somebody, or by the OOM killer')


@pytest.mark.skipif(sys.platform == 'win32', reason='there are no signals')
@pytest.mark.parametrize(
    ('death', 'words'),
    [
        ('kill -BUS $$', ['SIGBUS', '/dev/shm is full (32 GB free now)', '--shm-size']),
        ('kill -SEGV $$', ['SIGSEGV', 'compiled code', 'num_workers=0']),
        ('kill -ABRT $$', ['SIGABRT', 'compiled code']),
        ('kill -TERM $$', ['SIGTERM', 'somebody has ended it']),
        ('exit 1', ['exit code 1', 'pickled']),
        ('exit 0', ['exit code 0', 'sys.exit()']),
    ],
)
def test_why_it_ended(death: str, words: list[str]) -> None:
    code = subprocess.run(['sh', '-c', death]).returncode
    text = why_worker_died(code, oom_before=0, limits=limits())
    assert [word for word in words if word not in text] == []
    assert why_worker_died(code, oom_before=0)  # on this machine


def test_why_it_ended_elsewhere() -> None:
    def why(code: int | None) -> str:
        return why_worker_died(code, oom_before=None, limits=UNKNOWN)

    assert why(None).startswith('it still runs')
    assert why(-99) == 'signal 99'
    assert 'access violation' in why(0xC0000005)
    assert 'paging file' in why(0xC000012D)
    assert '/dev/shm is full: ' in why(-signal.SIGBUS)


# What torch 2.13 and Python 3.11 said when these limits were met.
FILES = 'the limit of open files of 65536 (hard limit 65536) is reached; raise it: ulimit -n 131072'
SHM = '/dev/shm is full (32 GB free now): give the container --shm-size=1g'
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
        (OSError(errno.ENOMEM, 'Cannot allocate memory'), 'no memory left (64 GB available now)'),
        (OSError('[WinError 1455] The paging file is too small'), 'no memory left'),
        (OSError(errno.ENOENT, 'No such file or directory', '/a.jpg'), None),
        (EOFError('Ran out of input'), None),
        (ValueError('bad label'), None),
    ],
)
def test_why_os_error(error: Exception, words: str | None) -> None:
    text = why_os_error(error, limits())
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


def test_a_real_death_of_small_shm() -> None:
    done = in_small_shm([sys.executable, '-I', '-c', WRITES], '64m')
    text = why_worker_died(done.returncode, oom_before=None, limits=limits(shared_memory=0))
    assert text.startswith('SIGBUS: /dev/shm is full (0 bytes free now)'), done.stderr
    assert in_small_shm([sys.executable, '-I', '-c', WRITES], '96m').returncode == 0


LOADS = """
import sys, torch
from torch.utils.data import DataLoader
from mmtempo.loaders.planner import plan_loader
from mmtempo.loaders.worker_errors import why_os_error

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((3 << 20,), index, dtype=torch.uint8)

cfg = dict(num_workers=4, prefetch_factor=4)
found = plan_loader(
    cfg, sample_bytes=3 << 20, batch_size=2, start_method='fork', has_accelerator=False,
    local_world_size=1, worker_bytes=0,
)
print(found.num_workers, found.prefetch_factor, len(found.warnings))
for workers, ahead in (found.num_workers, found.prefetch_factor), (4, 4):
    loader = DataLoader(Images(), 2, num_workers=workers, prefetch_factor=ahead, timeout=20)
    held = []
    try:
        for count, batch in enumerate(loader, 1):
            held = [*held[-3:], batch]
        print(count)
    except RuntimeError as error:
        print(why_os_error(error))
"""


@pytest.mark.slow
def test_a_loader_in_small_shm(tmp_path: Path) -> None:
    """As planned it runs through; as configured it does not."""
    script = tmp_path / 'script.py'
    script.write_text(LOADS)
    done = in_small_shm([sys.executable, '-W', 'ignore', str(script)], '64m')
    assert done.returncode == 0, done.stderr
    planned, as_planned, as_configured = done.stdout.splitlines()[-3:]
    assert planned.split()[:2] == ['4', '1']
    assert as_planned == '20'
    assert as_configured.startswith('/dev/shm is full (')
