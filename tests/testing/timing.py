"""Fake device that records events late and fails the test on any synchronization."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

DEVICE = torch.device('cuda:1')


class LateEvent:
    """Fake event that fails the test if it is read too early or synchronized."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.number, self.time = -1, 0.0

    def record(self, stream: str) -> None:
        assert stream == f'current stream of {DEVICE}'
        self.device.recorded += 1
        self.number, self.time = self.device.recorded, self.device.given

    def query(self) -> bool:
        assert self.number > 0, 'queried before it was recorded'
        return self.number <= self.device.reached

    def elapsed_time(self, end: LateEvent) -> float:
        assert self.query(), 'start event read before the device has reached it'
        assert end.query(), 'end event read before the device has reached it'
        return end.time - self.time

    def synchronize(self) -> None:
        raise AssertionError('synchronization of the host with an event')


class LateDevice:
    """Fake device that executes its queue only when the test calls `catch_up`.

    Attributes:
        created: Number of events that were created.
        recorded: Number of recordings in the queue.
        reached: Number of recordings that the device has executed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_seam: bool = True) -> None:
        self.created = self.recorded = self.reached = 0
        self.given = 0.0

        def current_stream(device: torch.device) -> str:
            return f'current stream of {device}'

        def synchronize(*args: Any) -> None:
            raise AssertionError('synchronization of the host with the device')

        seam = SimpleNamespace(current_stream=current_stream, synchronize=synchronize)
        if has_seam:
            monkeypatch.setattr(torch, 'accelerator', seam, raising=False)
            monkeypatch.setattr(torch, 'Event', self.event)
        else:  # before torch 2.6
            monkeypatch.delattr(torch, 'accelerator', raising=False)
            monkeypatch.setattr(torch.cuda, 'Event', lambda **how: self.event(DEVICE, **how))
            monkeypatch.setattr(torch.cuda, 'current_stream', current_stream)
        monkeypatch.setattr(torch.cuda, 'synchronize', synchronize)

    def event(self, device: torch.device, enable_timing: bool = False) -> LateEvent:
        assert device == DEVICE
        assert enable_timing
        self.created += 1
        return LateEvent(self)

    def work(self, milliseconds: float) -> None:
        self.given += milliseconds

    def catch_up(self, events: int | None = None) -> None:
        """Execute the queue up to the next `events` recordings; None: all of it."""
        self.reached = self.recorded if events is None else self.reached + events
