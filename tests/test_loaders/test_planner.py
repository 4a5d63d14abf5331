"""Choice of workers and batches ahead within CPUs, memory, /dev/shm and open files."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData

from mmtempo.loaders.planner import count_bytes, count_segments
from mmtempo.system.limits import OpenFiles
from mmtempo.utils.units import size
from tests.testing.limits import in_small_shm
from tests.testing.loader_plans import GIB, MIB, machine_limits, make_plan, numbers_of

KEYS = ('num_workers', 'prefetch_factor', 'pin_memory', 'persistent_workers')


@pytest.mark.parametrize('value', ['missing', None, 'auto'])
def test_open_keys_are_chosen(value: Any) -> None:
    found = make_plan({} if value == 'missing' else dict.fromkeys((*KEYS, 'timeout'), value))
    assert [getattr(found, key) for key in KEYS] == [7, 2, True, True]
    assert found.timeout is None
    assert found.warnings == []


def test_given_values_are_kept() -> None:
    given = dict(num_workers=3, prefetch_factor=5, pin_memory=False, persistent_workers=False)
    found = make_plan({**given, 'timeout': 1.5, 'batch_size': 2, 'dataset': {}})
    assert {key: getattr(found, key) for key in KEYS} == given
    assert found.timeout == 1.5
    assert found.warnings == []


def test_keys_of_workers_are_ignored_without_workers() -> None:
    """mmengine's configs set them without workers, which torch refuses."""
    found = make_plan(dict(num_workers=0, persistent_workers=True, prefetch_factor=4))
    assert [getattr(found, key) for key in KEYS] == [0, None, True, False]
    assert 'ignored, there are no workers' in found.describe()
    assert found.warnings == []
    assert found.needs.shared_memory == found.needs.files == 0


def test_memory_is_not_pinned_without_accelerator() -> None:
    found = make_plan(dict(pin_memory=True), has_accelerator=False)
    assert not found.pin_memory
    assert found.warnings == []
    assert 'there is no accelerator' in found.describe()
    assert not make_plan(has_accelerator=False).pin_memory
    assert 'accelerator' not in make_plan(has_accelerator=False).describe()


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
def test_invalid_value_is_an_error_that_names_the_key(key: str, value: Any) -> None:
    with pytest.raises(ValueError, match=re.escape(f'found {value!r}')) as error:
        make_plan({key: value}, name='val_dataloader')
    assert str(error.value).startswith(f"val_dataloader.{key} must be 'auto' or ")


@pytest.mark.parametrize(
    ('cpus', 'world', 'workers'),
    [(8, 1, 7), (8, 2, 3), (8, 8, 1), (4, 8, 1), (1, 1, 1), (0.5, 1, 1), (3.9, 1, 2), (128, 1, 16)],
)
def test_number_of_workers_follows_cpus(cpus: float, world: int, workers: int) -> None:
    found = make_plan(None, machine_limits(cpus), local_world_size=world)
    assert found.num_workers == workers
    assert found.warnings == []


def test_more_workers_than_cpus_is_a_warning() -> None:
    assert make_plan(dict(num_workers=4), machine_limits(8), local_world_size=2).warnings == []
    found = make_plan(dict(num_workers=5), machine_limits(8), local_world_size=2)
    assert found.num_workers == 5
    (warning,) = found.warnings
    assert (
        "num_workers=5: 10 workers on this node share 8 usable CPUs (affinity); 'auto'" in warning
    )


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
    machine = machine_limits(16, platform=platform)
    assert numbers_of(make_plan(None, machine, start_method=method)) == expected
    given = dict(num_workers=9, prefetch_factor=3)
    assert numbers_of(make_plan(given, machine, start_method=method)) == (9, 3)


# A batch takes 6 MiB. Besides those of workers, one batch is in /dev/shm if pinned, else four.
@pytest.mark.parametrize(
    ('free', 'pinned', 'expected'),
    [
        (58, True, (4, 2)),  # 9 batches and 4 MiB
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
def test_batches_fit_into_shared_memory(
    free: int, pinned: bool, expected: tuple[int, int | None]
) -> None:
    cfg = dict(num_workers=4, prefetch_factor=2)
    found = make_plan(cfg, machine_limits(shared_memory=free * MIB), has_accelerator=pinned)
    assert numbers_of(found) == expected
    if expected == (4, 2):
        assert found.warnings == []
    else:
        (warning,) = found.warnings
        assert f'/dev/shm: {size(free * MIB)} free' in warning
        assert '--shm-size=1g or --ipc=host' in warning
    assert found.persistent_workers == bool(found.num_workers)


def test_shared_memory_is_divided_among_processes() -> None:
    cfg = dict(num_workers=4, prefetch_factor=2)
    assert (
        make_plan(cfg, machine_limits(shared_memory=116 * MIB), local_world_size=2).warnings == []
    )
    found = make_plan(cfg, machine_limits(shared_memory=115 * MIB), local_world_size=2)
    assert numbers_of(found) == (4, 1)
    assert 'per process' in found.warnings[0]


def test_warning_states_shm_size_for_the_container() -> None:
    found = make_plan(
        dict(num_workers=8), machine_limits(shared_memory=64 * MIB), sample_bytes=100 * MIB
    )
    assert numbers_of(found) == (0, None)
    assert '--shm-size=8g' in found.warnings[0]  # twice 3.3 GiB


def test_no_workers_without_shared_memory() -> None:
    """Workers need it on Linux, and not where the size is unknown."""
    assert make_plan(None, machine_limits(shared_memory=0), sample_bytes=None).num_workers == 0
    assert make_plan(None, machine_limits(shared_memory=None)).num_workers == 7  # macOS


def test_workers_fit_into_memory() -> None:
    machine = machine_limits(memory=4 * GIB)
    assert make_plan(None, machine).num_workers == 7
    found = make_plan(None, machine, worker_bytes=GIB)
    assert numbers_of(found) == (3, 2)  # with a reserve
    assert found.warnings == []  # the config leaves the number open
    assert 'num_workers 7 -> 3' in found.describe()
    found = make_plan(dict(num_workers=7), machine, worker_bytes=GIB)
    assert found.num_workers == 3
    assert 'num_workers 7 -> 3' in found.warnings[0]
    # A spawned worker imports all modules again.
    assert make_plan(dict(num_workers=7), machine, start_method='spawn').num_workers == 6
    assert make_plan(dict(num_workers=7), machine, local_world_size=2).warnings != []


def test_given_numbers_may_use_the_reserve() -> None:
    machine, others = machine_limits(memory=1024 * MIB), dict(worker_bytes=400 * MIB)
    assert make_plan(None, machine, **others).num_workers == 1
    assert make_plan(dict(num_workers=2), machine, **others).num_workers == 2


def test_batches_fit_into_memory() -> None:
    machine, cfg = machine_limits(memory=2 * GIB), dict(num_workers=4, prefetch_factor=4)
    assert numbers_of(make_plan(cfg, machine, sample_bytes=60 * MIB)) == (
        4,
        2,
    )  # 12 of 120 MiB, and 400 MiB
    # A given number is kept as long as a chosen one can be lowered.
    found = make_plan(dict(prefetch_factor=4), machine, sample_bytes=60 * MIB)
    assert numbers_of(found) == (2, 4)
    assert 'num_workers 7 -> 2' in found.warnings[0]


def test_batch_larger_than_memory_is_an_error() -> None:
    with pytest.raises(
        ValueError, match='train_dataloader.batch_size: one batch takes 6.00 GiB, and 5.00 '
    ):
        make_plan(dict(num_workers=0), machine_limits(memory=5 * GIB), sample_bytes=3 * GIB)
    assert (
        make_plan(
            dict(num_workers=0), machine_limits(memory=7 * GIB), sample_bytes=3 * GIB
        ).num_workers
        == 0
    )


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
def test_shared_tensors_fit_into_open_files(
    soft: int, hard: int, segments: int, expected: tuple, raised: int | None
) -> None:
    cfg, machine = dict(num_workers=4), machine_limits(open_files=OpenFiles(soft, hard, 50))
    found = make_plan(cfg, machine, segments_per_batch=segments)
    assert (*numbers_of(found), found.open_files) == (*expected, raised)
    assert bool(found.warnings) == (expected != (4, 2))
    if found.warnings:
        assert f'open files: at most {hard} (hard limit)' in found.warnings[0]
        assert 'ulimit -n' in found.warnings[0]
    if raised:
        assert f'open files: soft limit {soft} -> {raised}' in found.describe()


def test_open_files_are_ignored_with_file_system_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    multiprocessing = torch.multiprocessing
    monkeypatch.setattr(multiprocessing, 'get_sharing_strategy', lambda: 'file_system')
    found = make_plan(
        None, machine_limits(open_files=OpenFiles(64, 64, 60)), segments_per_batch=100
    )
    assert (*numbers_of(found), found.open_files) == (7, 2, None)


def test_bytes_and_segments_of_nested_samples_are_counted() -> None:
    image = torch.zeros(3, 4, 5, dtype=torch.uint8)
    label = PixelData(data=torch.zeros(1, 4, 5, dtype=torch.int64))
    element = BaseDataElement(gt_sem_seg=label, metainfo=dict(img_path='a', size=(4, 5)))
    sample = dict(inputs=image, data_samples=element, points=np.zeros((7, 2)), name='a', index=3)
    assert count_bytes(sample) == 60 + 160 + 112
    assert count_bytes([sample, (sample['points'],), None]) == 332
    assert count_segments(sample) == 2
    empty = torch.zeros(0)
    assert (count_bytes(empty), count_segments(empty)) == (0, 0)


def test_views_count_once() -> None:
    packed = torch.zeros(4, 10, dtype=torch.uint8)
    batch = dict(labels=packed, data_samples=list(packed.unbind()))
    assert (count_bytes(batch), count_segments(batch)) == (40, 1)
    assert count_bytes(packed[1]) == 10  # its size once it is stacked
    assert count_bytes(list(packed.unbind())) == 40


LOADS = """
import sys, torch
from torch.utils.data import DataLoader
from mmtempo.loaders.planner import plan_loader
from mmtempo.loaders.worker_errors import why_os_error
from mmtempo.system.limits import Limits

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return torch.full((3 << 20,), index, dtype=torch.uint8)

cfg = dict(num_workers=4, prefetch_factor=4)
found = plan_loader(
    cfg, sample_bytes=3 << 20, batch_size=2, start_method='fork', has_accelerator=False,
    local_world_size=1, limits=Limits.of_this_machine(), worker_bytes=0,
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
def test_planned_loader_runs_in_small_shm(tmp_path: Path) -> None:
    """The planned numbers complete an epoch; the configured ones fill /dev/shm."""
    script = tmp_path / 'script.py'
    script.write_text(LOADS)
    done = in_small_shm([sys.executable, '-W', 'ignore', str(script)], '64m')
    assert done.returncode == 0, done.stderr
    planned, as_planned, as_configured = done.stdout.splitlines()[-3:]
    assert planned.split()[:2] == ['4', '1']
    assert as_planned == '20'
    assert as_configured.startswith('/dev/shm is full (')
