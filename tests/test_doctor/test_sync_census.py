"""Operations that synchronize host and device are counted, others are not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from mmtempo.doctor import sync_census
from mmtempo.doctor.sync_census import SyncCensus

VALUES = torch.tensor([1.0, -2.0, 3.0])


@pytest.mark.parametrize(
    'work',
    [
        lambda: VALUES.sum().item(),
        lambda: bool(VALUES[0] > 0),
        lambda: VALUES[VALUES > 0],
        lambda: VALUES.clone().__setitem__(VALUES > 0, torch.zeros(2)),
        lambda: VALUES.nonzero(),
        lambda: torch.where(VALUES > 0),
        lambda: VALUES.masked_select(VALUES > 0),
        lambda: torch.equal(VALUES, VALUES),
        lambda: torch.allclose(VALUES, VALUES),
        lambda: VALUES.unique(),
        lambda: VALUES.unique(dim=0),
        lambda: VALUES.unique_consecutive(),
        lambda: VALUES.abs().long().bincount(),
        lambda: VALUES.repeat_interleave(VALUES.abs().long()),
    ],
)
def test_synchronizing_operation_is_counted(work: Callable) -> None:
    with SyncCensus() as census:
        work()
    assert len(census.host_syncs) >= 1


def test_asynchronous_operations_are_not_counted() -> None:
    with SyncCensus() as census:
        total = VALUES.softmax(0) @ VALUES
        chosen = VALUES[torch.tensor([0, 2])] + torch.where(VALUES > 0, VALUES, 0).sum()
        (total + chosen).repeat_interleave(2).to('cpu', non_blocking=True)
    assert census.host_syncs == []


@pytest.mark.parametrize(
    ('work', 'kind'),
    [
        (lambda: VALUES.cpu(), 'copy to the host'),
        (lambda: VALUES.numpy(), 'copy to the host'),
        (lambda: np.asarray(VALUES), 'copy to the host'),
        (lambda: VALUES.tolist(), 'copy to the host'),
        (lambda: VALUES.to('cpu'), 'copy to the host'),
        (lambda: VALUES[[2, 1, 0]], 'index by list'),
        (lambda: VALUES[np.array([0, 1])], 'index by list'),
        (lambda: VALUES.new_tensor([1.0, 2.0]), 'blocking copy'),
        (lambda: torch.tensor([1.0], device=VALUES.device), 'blocking copy'),
        (lambda: VALUES[VALUES > 0], 'index by mask'),
        (lambda: float(VALUES.mean()), 'scalar read'),
        (lambda: VALUES.nonzero(), 'shape by value'),
    ],
)
def test_kind_and_line_are_recorded(work: Callable, kind: str) -> None:
    with SyncCensus() as census:
        work()
    (host_sync,) = census.host_syncs
    assert host_sync.kind == kind
    path, _, line = host_sync.where.rpartition(':')
    assert path == __file__
    assert int(line) == work.__code__.co_firstlineno


def test_host_tensors_are_not_counted_until_they_move() -> None:
    batch = dict(inputs=[torch.ones(3), torch.ones(3)], sample=SegDataSample(gt=PixelData()))
    batch['sample'].gt.data = torch.zeros(1, 3, 3)
    device = torch.device('cpu')
    with SyncCensus() as census:
        census.mark_on_host(batch)
        stacked = torch.stack(batch['inputs'])
        stacked.sum().item()
        stacked[[1, 0]].tolist()
        batch['sample'].gt.data.numpy()
        torch.tensor([1, 2]).tolist()
        stacked.half().float().sum().item()
        stacked.to(torch.float64).sum().item()
        moved = stacked.to(device, non_blocking=True)
        assert census.host_syncs == []
        stacked.to(device)
        moved.sum().item()
        (moved + stacked).sum().item()
    kinds = [host_sync.kind for host_sync in census.host_syncs]
    assert kinds == ['blocking copy', 'scalar read', 'scalar read']


def test_synchronization_in_a_backward_pass_is_counted() -> None:
    class ReadsGradient(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * grad.max().item()

    x = VALUES.clone().requires_grad_()
    with SyncCensus() as census:
        ReadsGradient.apply(x).sum().backward()
    assert [host_sync.kind for host_sync in census.host_syncs] == ['scalar read']


def test_step_count_of_optimizers_is_not_counted() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight])
    for _ in range(2):
        weight.sum().backward()
        with SyncCensus() as census:
            optimizer.step()
        assert census.host_syncs == []


def test_table_has_the_most_frequent_first() -> None:
    with SyncCensus() as census:
        for _ in range(3):
            VALUES.sum().item()
        VALUES.nonzero()
    assert [count for _, count in census.table()] == [3, 1]
    assert census.table()[0][0].kind == 'scalar read'


def test_nothing_is_counted_after_exit() -> None:
    with pytest.raises(RuntimeError, match='on purpose'), SyncCensus() as census:
        raise RuntimeError('on purpose')
    VALUES.sum().item()
    VALUES.tolist()
    assert census.host_syncs == []


def test_warnings_of_cuda_debug_mode_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a fake CUDA that warns as the real one does."""
    modes: list[str] = []
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(sync_census, 'current_device_index', lambda: 0)
    monkeypatch.setattr(torch.cuda, 'set_sync_debug_mode', modes.append)
    with SyncCensus() as census:
        assert modes == ['warn']
        VALUES.sum().item()  # on the host, since there is a device
        warnings.warn('called a synchronizing CUDA operation', stacklevel=1)
        warnings.warn('something else', stacklevel=1)
    assert modes == ['warn', 'default']
    assert census.host_syncs == []
    (host_sync,) = census.reported_by_cuda
    assert host_sync.where.startswith(__file__)
    assert census.table() == [(host_sync, 1)]


def test_no_device_is_imagined_with_an_accelerator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_census, 'current_device_index', lambda: 0)
    with SyncCensus() as census:
        VALUES.sum().item()  # on the host, since there is a device
        VALUES.tolist()
    assert census.table() == []


def test_former_name_of_host_syncs_works() -> None:
    with SyncCensus() as census:
        VALUES.sum().item()
    assert census.waits is census.host_syncs
    assert len(census.waits) == 1
