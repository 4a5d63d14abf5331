"""The copy is started, then an event is recorded on the device of the tensor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmtempo.device import host_copy
from mmtempo.device.host_copy import HostCopy


class FakeDevice:
    """Records the order of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.is_done = False
        self.device = torch.device('cuda:1')
        room = SimpleNamespace(copy_=self.copy, tolist=self.read)
        monkeypatch.setattr(torch, 'empty_like', lambda tensor, **options: room)
        accelerator = SimpleNamespace(current_stream=lambda device: f'stream of {device}')
        monkeypatch.setattr(torch, 'accelerator', accelerator, raising=False)
        monkeypatch.setattr(torch, 'Event', self.event)

    def event(self, device: torch.device) -> SimpleNamespace:
        return SimpleNamespace(
            record=lambda stream: self.asked.append(('record', stream)),
            query=lambda: self.is_done,
            synchronize=lambda: self.asked.append('wait'),
        )

    def copy(self, tensor: Any, non_blocking: bool) -> None:
        self.asked.append(('copy', non_blocking))

    def read(self) -> list:
        self.asked.append('read')
        return [1.0]


def test_a_copy_from_a_device_waits_for_its_event_only(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDevice(monkeypatch)
    copy = HostCopy(SimpleNamespace(device=fake.device))  # type: ignore[arg-type]
    assert fake.asked == [('copy', True), ('record', 'stream of cuda:1')]
    assert not copy.arrived
    fake.is_done = True
    assert copy.arrived
    assert copy.values() == [1.0]
    assert fake.asked[2:] == ['wait', 'read']


def test_a_tensor_on_the_host_has_arrived() -> None:
    copy = HostCopy(torch.tensor([1.0, 2.0]))
    assert copy.arrived
    assert copy.values() == [1.0, 2.0]


@pytest.mark.parametrize(('device', 'pinned'), [('cuda', True), ('xpu', True), ('mps', False)])
def test_host_memory_is_pinned_where_supported(
    device: str, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, 'empty_like', lambda tensor, **options: options)
    tensor: Any = SimpleNamespace(device=torch.device(device))
    assert host_copy._empty_on_host(tensor) == dict(device='cpu', pin_memory=pinned)
