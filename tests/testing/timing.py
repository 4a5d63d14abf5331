"""A device that notes the time late, and must not be waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

DEVICE = torch.device('cuda:1')


class LateEvent:
    """Asked for its time before the device has got there, or waited for, it fails the test."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.number, self.time = -1, 0.0

    def record(self, stream: str) -> None:
        assert stream == f'current stream of {DEVICE}'
        self.device.recorded += 1
        self.number, self.time = self.device.recorded, self.device.given

    def query(self) -> bool:
        assert self.number > 0, 'never recorded'
        return self.number <= self.device.reached

    def elapsed_time(self, end: LateEvent) -> float:
        assert self.query(), 'read too early'
        assert end.query(), 'read too early'
        return end.time - self.time

    def synchronize(self) -> None:
        raise AssertionError('the host waits')


class LateDevice:
    """Work is given to it in milliseconds; it is done when the test says so.

    Attributes:
        created: Events that were made.
        recorded: How often the time was noted.
        reached: How many of those the device has got to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_seam: bool = True) -> None:
        self.created = self.recorded = self.reached = 0
        self.given = 0.0

        def current_stream(device: torch.device) -> str:
            return f'current stream of {device}'

        def wait(*args: Any) -> None:
            raise AssertionError('the host waits')

        seam = SimpleNamespace(current_stream=current_stream, synchronize=wait)
        if has_seam:
            monkeypatch.setattr(torch, 'accelerator', seam, raising=False)
            monkeypatch.setattr(torch, 'Event', self.event)
        else:  # before torch 2.6
            monkeypatch.delattr(torch, 'accelerator', raising=False)
            monkeypatch.setattr(torch.cuda, 'Event', lambda **how: self.event(DEVICE, **how))
            monkeypatch.setattr(torch.cuda, 'current_stream', current_stream)
        monkeypatch.setattr(torch.cuda, 'synchronize', wait)

    def event(self, device: torch.device, enable_timing: bool = False) -> LateEvent:
        assert device == DEVICE
        assert enable_timing
        self.created += 1
        return LateEvent(self)

    def work(self, milliseconds: float) -> None:
        self.given += milliseconds

    def catch_up(self, events: int | None = None) -> None:
        """Get to so many more noted times; None for all."""
        self.reached = self.recorded if events is None else self.reached + events
