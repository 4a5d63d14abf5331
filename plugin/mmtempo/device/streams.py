"""Streams, events and pinned memory: everything that differs between devices."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

# Devices whose memory the host reaches directly, or that have none: pinning has no effect.
WITHOUT_PINNING = {'cpu', 'meta', 'mps'}
# Devices with timing events that do not synchronize; those of MPS do.
WITH_TIMING = {'cuda', 'xpu'}


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy a tensor to a device without synchronization.

    Even an asynchronous copy from pageable memory may block the host, so the tensor is pinned
    first. It may be dropped right after: torch reuses pinned memory only when the copies from it
    are complete. A copy from memory that is not pinned is synchronous: it might read the memory
    after it is freed, as on MPS (pytorch#189690).
    """
    target = torch.device(device).type
    on_host = tensor.device.type == 'cpu'
    if on_host and target not in WITHOUT_PINNING and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    # A tensor that stays on the host is not copied; SyncCensus sees the call all the same.
    if on_host and (target == 'cpu' or tensor.is_pinned()):
        return tensor.to(device, non_blocking=True)
    return tensor.to(device)


def pin_in_place(memory: torch.Tensor, device: torch.device) -> bool:
    """Pin existing host memory; return whether the device supports it.

    Without it copies are correct but block the host. Only CUDA and ROCm support it: elsewhere
    `Tensor.pin_memory` returns new memory, and torch cannot pin memory that is shared with another
    process.
    """
    if device.type != 'cuda':
        return False
    with torch.cuda.device(device):
        cuda = torch.cuda.cudart()
        result = cuda.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
        if result == cuda.cudaError.success:
            return True
        # The next kernel would report the error, so launch one whose result is not needed.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)
    return False


def unpin(memory: torch.Tensor, device: torch.device) -> None:
    """Undo `pin_in_place`; call it before the memory is freed."""
    with torch.cuda.device(device):  # a new thread would initialize the first device
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()))


class SideStream:
    """A stream for copies that overlap with computation.

    Args:
        device: The accelerator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams: Any
        self._stream: Any
        self._new_event: Any
        if hasattr(torch, 'accelerator'):  # torch 2.6
            self._streams, self._stream = torch.accelerator, torch.Stream(device)
            self._new_event = functools.partial(torch.Event, device)
        else:
            self._streams, self._stream = torch.cuda, torch.cuda.Stream(device)
            self._new_event = torch.cuda.Event
        self._slots: deque[tuple[Any, Any]] = deque()
        self._events: list[Any] = []  # free for reuse

    @contextlib.contextmanager
    def overlapped(self) -> Iterator[None]:
        """Launch the work of this block on this stream, after everything launched before it."""
        current = current_device_index()
        computing = self._streams.current_stream(self._device)
        self._stream.wait_stream(computing)
        self._streams.set_stream(self._stream)
        try:
            yield
        finally:
            # Setting a stream changes the current device to that of the stream.
            self._streams.set_stream(computing)
            if current is not None:
                set_device_index(current)

    def copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Start copies of (target, source) after everything launched before; return an event."""
        with self.overlapped():
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        event = self._new_event()
        event.record(self._stream)
        return event

    def keep(self, content: Any) -> Any:
        """Reference `content` until this stream has read it; return the event of that moment.

        Host memory that is not from torch's allocator has no other protection from being
        overwritten. The event is valid until `make_current_wait` was called with it and `release`
        after that; then it is reused.
        """
        event = self._events.pop() if self._events else self._new_event()
        event.record(self._stream)
        self._slots.append((event, content))
        return event

    def release(self) -> None:
        """Drop the references to what was read, without waiting for the rest."""
        while self._slots and self._slots[0][0].query():
            self._events.append(self._slots.popleft()[0])

    def make_current_wait(self, event: Any) -> None:
        """Make later work on the current stream wait for the event; the host does not wait."""
        self._streams.current_stream(self._device).wait_event(event)


def tells_time(device: torch.device) -> bool:
    """Return whether `note_time` works on this device."""
    return device.type in WITH_TIMING and (device.type == 'cuda' or hasattr(torch, 'accelerator'))


def note_time(device: torch.device, event: Any = None) -> Any:
    """Record a timing event on the current stream of a device; return it, to be queried later.

    Args:
        device: The accelerator.
        event: An event to reuse. Defaults to None: a new event.
    """
    if hasattr(torch, 'accelerator'):  # torch 2.6
        event = torch.Event(device, enable_timing=True) if event is None else event
        event.record(torch.accelerator.current_stream(device))
    else:
        event = torch.cuda.Event(enable_timing=True) if event is None else event
        event.record(torch.cuda.current_stream(device))
    return event


def cpu_has_bfloat16() -> bool | None:
    """Return whether the CPU has bfloat16 instructions; None where that is unknown."""
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            words = set(file.read().split())
    except OSError:
        return None
    return bool(words & {'avx512_bf16', 'amx_bf16', 'bf16'})


def current_device_index() -> int | None:
    """Return the index of the current accelerator of this thread; None without an accelerator."""
    if hasattr(torch, 'accelerator'):  # torch 2.6
        if not torch.accelerator.is_available():
            return None
        return torch.accelerator.current_device_index()
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def set_device_index(index: int) -> None:
    """Set the current accelerator of this thread; a new thread has the first one."""
    if hasattr(torch, 'accelerator'):
        torch.accelerator.set_device_index(index)
    else:
        torch.cuda.set_device(index)
