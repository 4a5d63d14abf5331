"""Copies to a device that is not there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmtempo.core.device import to_device


class Remembering:
    """A tensor that notes what is done with it."""

    def __init__(self, device: str = 'cpu', pinned: bool = False) -> None:
        self.device, self.pinned = torch.device(device), pinned
        self.done: list[Any] = []

    def is_pinned(self) -> bool:
        return self.pinned

    def pin_memory(self) -> Remembering:
        self.done.append('pin')
        copy = Remembering(pinned=True)
        copy.done = self.done
        return copy

    def to(self, device: Any, non_blocking: bool = False) -> Remembering:
        self.done.append((str(device), non_blocking, self.pinned))
        return self


@pytest.mark.parametrize(
    ('start', 'device', 'done'),
    [
        ({}, 'cuda:1', ['pin', ('cuda:1', True, True)]),
        ({}, torch.device('cuda'), ['pin', ('cuda', True, True)]),
        ({}, 'xpu', ['pin', ('xpu', True, True)]),
        (dict(pinned=True), 'cuda', [('cuda', True, True)]),
        (dict(device='cuda'), 'cuda', [('cuda', False, False)]),
        (dict(device='cuda'), 'cpu', [('cpu', False, False)]),
        ({}, 'cpu', [('cpu', True, False)]),
        ({}, 'mps', [('mps', False, False)]),
        (dict(pinned=True), 'mps', [('mps', True, True)]),
        ({}, 'meta', [('meta', False, False)]),
    ],
)
def test_pins_what_leaves_the_host(start: dict, device: Any, done: list) -> None:
    tensor = Remembering(**start)
    to_device(tensor, device)  # type: ignore[arg-type]
    assert tensor.done == done


def test_on_the_cpu_nothing_is_copied() -> None:
    tensor = torch.arange(3)
    assert to_device(tensor, 'cpu') is tensor
    assert to_device(tensor, 'meta').device.type == 'meta'
