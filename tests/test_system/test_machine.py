"""The description of a machine: usable cores and any accelerator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmtempo.system import machine as module
from mmtempo.system.limits import Cpus
from mmtempo.system.machine import accelerator, machine, processes_here


@pytest.mark.parametrize(('quota', 'cores'), [(16.0, 16), (3.5, 3), (0.5, 1)])
def test_cores_of_a_container_are_counted(
    quota: float, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, 'usable_cpus', lambda: Cpus(quota, 'cgroup quota'))
    assert machine()['cores'] == cores


def fake_accelerator(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    found = SimpleNamespace(
        is_available=lambda: kind is not None, current_accelerator=lambda: torch.device(kind or '')
    )
    monkeypatch.setattr(torch, 'accelerator', found, raising=False)


def test_any_accelerator_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, 'get_device_name', lambda: 'Intel Arc B580')
    fake_accelerator(monkeypatch, 'xpu')
    assert accelerator() == machine()['accelerator'] == 'Intel Arc B580'
    fake_accelerator(monkeypatch, 'mps')  # without device names
    assert accelerator() == 'MPS'
    fake_accelerator(monkeypatch, None)
    assert accelerator() is None


def test_cuda_is_named_before_torch_2_6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch, 'accelerator', raising=False)
    assert accelerator() is None
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda: 'NVIDIA RTX 4090')
    assert accelerator() == 'NVIDIA RTX 4090'


@pytest.mark.parametrize(
    ('world', 'environment', 'here'),
    [
        (1, {}, 1),
        (8, {}, 8),  # no launcher: one node
        (8, dict(LOCAL_WORLD_SIZE='4'), 4),
        (8, dict(SLURM_NTASKS_PER_NODE='2'), 2),
        (8, dict(SLURM_NTASKS_PER_NODE='2(x3)'), 8),
        (1, dict(LOCAL_WORLD_SIZE='4'), 1),  # the launcher's processes include others
        (2, dict(LOCAL_WORLD_SIZE='0'), 1),
    ],
)
def test_processes_of_this_node(
    world: int, environment: dict[str, Any], here: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in module.LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert processes_here(world) == here


def test_processes_of_a_node_without_a_launcher_have_a_gpu_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in module.LOCAL_SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch, 'accelerator', SimpleNamespace(device_count=lambda: 4))
    assert processes_here(16) == 4
