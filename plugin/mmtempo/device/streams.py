"""Streams, events and pinned memory: all that is different from device to device."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

# Memory that the host can reach anyway, or none at all: nothing is gained by pinning.
WITHOUT_PINNING = {'cpu', 'meta', 'mps'}
# Whose events tell the time without waiting; those of MPS wait for all that it was given.
WITH_TIMING = {'cuda', 'xpu'}


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Copy without waiting for the device.

    From pageable memory even an asynchronous copy may hold the host up, so the tensor goes
    through pinned memory. It may be dropped right after: torch gives pinned memory to the next
    only when the copies from it are done. What is not pinned is waited for: an asynchronous copy
    may read it after it was released, as on MPS (pytorch#189690).
    """
    target = torch.device(device).type
    on_host = tensor.device.type == 'cpu'
    if on_host and target not in WITHOUT_PINNING and not tensor.is_pinned():
        tensor = tensor.pin_memory()
    # From the host to the host is no copy; the wait census takes it for one to its device.
    if on_host and (target == 'cpu' or tensor.is_pinned()):
        return tensor.to(device, non_blocking=True)
    return tensor.to(device)


def pin_in_place(memory: torch.Tensor, device: torch.device) -> bool:
    """Make existing host memory fit for asynchronous copies; return whether the device can.

    Where it cannot, copies are right all the same, but they hold the host up. So it is on every
    accelerator other than CUDA and ROCm: `Tensor.pin_memory` works there, but returns new memory,
    and torch has no function that pins memory which is shared with another process.
    """
    if device.type != 'cuda':
        return False
    with torch.cuda.device(device):
        cuda = torch.cuda.cudart()
        result = cuda.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
        if result == cuda.cudaError.success:
            return True
        # The next kernel would be blamed for the error: let it be one that nobody needs.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)
    return False


def unpin(memory: torch.Tensor, device: torch.device) -> None:
    """Undo `pin_in_place`, before the memory is given back."""
    with torch.cuda.device(device):  # a thread begins on the first one, and would wake that up
        torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()))


class SideStream:
    """A stream for copies, beside what the device computes.

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
        self._events: list[Any] = []  # which nobody waits for any more

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """Run what the device is given inside on this stream, after all that it was given."""
        current = current_device_index()
        computing = self._streams.current_stream(self._device)
        self._stream.wait_stream(computing)
        self._streams.set_stream(self._stream)
        try:
            yield
        finally:
            # Setting a stream makes its device the current one.
            self._streams.set_stream(computing)
            if current is not None:
                set_device_index(current)

    def copy(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        """Start copies (target, source), behind all that the device was given; returns an event."""
        with self.beside():
            for target, source in pairs:
                target.copy_(source, non_blocking=True)
        event = self._new_event()
        event.record(self._stream)
        return event

    def keep(self, content: Any) -> Any:
        """Hold what this stream reads until it has; returns the event.

        Memory on the host belongs to whoever gave it: if it is not the allocator's own, nobody
        else keeps it from being written to. The event is good until it was held for and
        `release` is called; then another one may get it.
        """
        event = self._events.pop() if self._events else self._new_event()
        event.record(self._stream)
        self._slots.append((event, content))
        return event

    def release(self) -> None:
        """Let go of what was read, without waiting for the rest."""
        while self._slots and self._slots[0][0].query():
            self._events.append(self._slots.popleft()[0])

    def hold(self, event: Any) -> None:
        """What the device is given from now on waits for the event; the host does not."""
        self._streams.current_stream(self._device).wait_event(event)

    def wait(self, event: Any) -> None:
        """Wait on the host."""
        event.synchronize()


def tells_time(device: torch.device) -> bool:
    """Whether `note_time` works there."""
    return device.type in WITH_TIMING and (device.type == 'cuda' or hasattr(torch, 'accelerator'))


def note_time(device: torch.device, event: Any = None) -> Any:
    """Have the device note when it gets here; returns the event, to be queried later.

    Args:
        device: The accelerator.
        event: One from before that nobody needs any more. Defaults to None: a new one.
    """
    if hasattr(torch, 'accelerator'):  # torch 2.6
        event = torch.Event(device, enable_timing=True) if event is None else event
        event.record(torch.accelerator.current_stream(device))
    else:
        event = torch.cuda.Event(enable_timing=True) if event is None else event
        event.record(torch.cuda.current_stream(device))
    return event


def cpu_has_bfloat16() -> bool | None:
    """Whether this processor computes in bfloat16 itself; None where nobody says."""
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as file:
            words = set(file.read().split())
    except OSError:
        return None
    return bool(words & {'avx512_bf16', 'amx_bf16', 'bf16'})


def current_device_index() -> int | None:
    """Of the accelerator that this thread works with; None where there is none."""
    if hasattr(torch, 'accelerator'):  # torch 2.6
        if not torch.accelerator.is_available():
            return None
        return torch.accelerator.current_device_index()
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def set_device_index(index: int) -> None:
    """Let this thread work with that accelerator; it begins with the first one."""
    if hasattr(torch, 'accelerator'):
        torch.accelerator.set_device_index(index)
    else:
        torch.cuda.set_device(index)
