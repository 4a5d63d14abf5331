"""Description of a plan, its effect on limits, and what it leaves to other loaders."""

from __future__ import annotations

import pytest

from mmtempo.loaders import plan as plan_module
from mmtempo.system.limits import OpenFiles
from tests.testing.loader_plans import GIB, MIB, UNKNOWN, machine_limits, make_plan, numbers_of


def test_limit_of_open_files_is_raised_by_apply_only(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(plan_module, 'raise_open_files', calls.append)
    make_plan().apply()
    found = make_plan(None, machine_limits(open_files=OpenFiles(64, 4096, 10)))
    assert calls == []
    found.apply()
    assert calls == [4096]


def test_plan_leaves_its_needs_out_of_the_limits() -> None:
    """Workers of training and validation run at the same time."""
    machine = machine_limits(
        shared_memory=100 * MIB, open_files=OpenFiles(1024, 1024, 50), memory=4 * GIB
    )
    first = make_plan(dict(num_workers=4), machine)
    left = first.left(machine)
    assert left.shared_memory == (100 - 9 * 6 - 4) * MIB
    assert left.memory == 4 * GIB - 4 * 100 * MIB - 12 * 6 * MIB
    assert left.open_files == OpenFiles(1024, 1024, 50 + 4 * 5 + 9 * 4)
    assert left.cpus == machine.cpus
    second = make_plan(dict(num_workers=4), left, name='val_dataloader')
    assert numbers_of(second) == (4, 1)
    assert first.left(UNKNOWN) == UNKNOWN


def test_description_has_numbers_reasons_and_warnings() -> None:
    machine = machine_limits(
        8,
        'cgroup quota',
        memory=36 * GIB,
        shared_memory=64 * MIB,
        open_files=OpenFiles(256, 4096, 100),
    )
    text = make_plan(None, machine, local_world_size=2, sample_bytes=MIB).describe()
    assert text.splitlines() == [
        'train_dataloader: 3 workers x 2 batches ahead, pinned, persistent',
        "  num_workers='auto': 8 usable CPUs (cgroup quota), 2 processes on this node -> 4 each, "
        '1 reserved for the training -> 3',
        '  memory: 10 batches of 2.00 MiB in flight = 20.0 MiB, 3 forked workers of about 100 MiB; '
        '18.0 GiB available per process',
        '  /dev/shm: 32.0 MiB free per process, 18.0 MiB needed',
        '  open files: soft limit 256 -> 4096 (hard limit)',
    ]
    text = make_plan(dict(num_workers=4, persistent_workers=False), machine).describe()
    assert text.splitlines()[0] == 'train_dataloader: 4 workers x 2 batches ahead, pinned'
    text = make_plan(dict(num_workers=5), machine, has_accelerator=False).describe()
    assert text.splitlines()[0] == 'train_dataloader: 5 workers x 1 batch ahead, persistent'
    assert text.splitlines()[-1] == (
        '  WARNING: /dev/shm: 64.0 MiB free, 88.0 MiB needed -> prefetch_factor 2 -> 1 '
        '(start the container with --shm-size=1g or --ipc=host)'
    )
    machine = machine_limits(shared_memory=8 * MIB)
    text = make_plan(None, machine, sample_bytes=MIB).describe()
    assert text.startswith('train_dataloader: 1 worker x 1 batch ahead, pinned, persistent\n')
    assert 'prefetch_factor 2 -> 1, num_workers 7 -> 1 (' in text
    assert make_plan(dict(num_workers=0)).describe().startswith('train_dataloader: no workers (')
