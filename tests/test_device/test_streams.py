"""Streams and copies, with a fake device."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmtempo.device.streams import SideStream, pin_in_place, to_device, unpin


class Remembering:
    """A tensor that records the calls on it."""

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
def test_tensors_are_pinned_before_they_leave_the_host(
    start: dict, device: Any, done: list
) -> None:
    tensor = Remembering(**start)
    to_device(tensor, device)  # type: ignore[arg-type]
    assert tensor.done == done


def test_a_tensor_on_the_cpu_is_not_copied_to_the_cpu() -> None:
    tensor = torch.arange(3)
    assert to_device(tensor, 'cpu') is tensor
    assert to_device(tensor, 'meta').device.type == 'meta'


class FakeCuda:
    """A fake CUDA runtime that records calls and the current device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: str = 'success') -> None:
        self.done: list[Any] = []
        self.result = result
        self._current = 'cuda:0'
        monkeypatch.setattr(torch.cuda, 'cudart', lambda: self)
        monkeypatch.setattr(torch.cuda, 'device', self.device)
        monkeypatch.setattr(torch.cuda, 'check_error', self.check)
        monkeypatch.setattr(torch, 'zeros', self.zeros)

    cudaError = SimpleNamespace(success='success')

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._current = self._current, str(device)
        yield
        self._current = before

    def cudaHostRegister(self, address: int, size: int, flags: int) -> str:
        self.done.append(('register', address, size, flags, self._current))
        return self.result

    def cudaHostUnregister(self, address: int) -> str:
        self.done.append(('unregister', address, self._current))
        return self.result

    def check(self, result: str) -> None:
        if result != 'success':
            raise RuntimeError(result)

    def zeros(self, *args: Any, device: torch.device) -> None:
        self.done.append(('kernel', self._current))
        raise RuntimeError(self.result)


def test_existing_memory_is_pinned_and_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    memory, device = torch.empty(5, dtype=torch.uint8), torch.device('cuda:1')
    assert pin_in_place(memory, device)
    unpin(memory, device)
    address = memory.data_ptr()
    assert fake.done == [
        ('register', address, 5, 0, 'cuda:1'),
        ('unregister', address, 'cuda:1'),
    ]


def test_failed_pinning_leaves_no_error_for_the_next_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA reports a pending error at the next kernel."""
    fake = FakeCuda(monkeypatch, 'no memory')
    memory = torch.empty(5, dtype=torch.uint8)
    assert not pin_in_place(memory, torch.device('cuda:1'))
    assert fake.done[1:] == [('kernel', 'cuda:1')]
    with pytest.raises(RuntimeError, match='no memory'):
        unpin(memory, torch.device('cuda:1'))


@pytest.mark.parametrize('device', ['cpu', 'mps', 'xpu'])
def test_other_devices_do_not_pin_existing_memory(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeCuda(monkeypatch)
    assert not pin_in_place(torch.empty(5), torch.device(device))
    assert fake.done == []


class FakeStreams:
    """A device with streams that records the order of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, has_seam: bool) -> None:
        self.asked: list[Any] = []
        self.events, self.is_done = 0, False
        self.current, self.index = self.stream('computing'), 0
        seam = SimpleNamespace(
            current_stream=self.current_stream,
            set_stream=self.set_stream,
            is_available=lambda: True,
            current_device_index=lambda: self.index,
            set_device_index=self.set_device,
            current_device=lambda: self.index,  # before torch 2.6
            set_device=self.set_device,
        )
        new = dict(Stream=lambda device: self.stream(f'side of {device}'), Event=self.event)
        if has_seam:
            monkeypatch.setattr(torch, 'accelerator', seam, raising=False)
            for name, value in new.items():
                monkeypatch.setattr(torch, name, value)
        else:  # before torch 2.6
            monkeypatch.delattr(torch, 'accelerator', raising=False)
            for name, value in {**vars(seam), **new}.items():
                monkeypatch.setattr(torch.cuda, name, value, raising=False)

    def stream(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(
            name=name,
            wait_stream=lambda other: self.asked.append((name, 'waits for', other.name)),
            wait_event=lambda event: self.asked.append((name, 'waits for', event.name)),
        )

    def event(self, *device: torch.device) -> SimpleNamespace:
        self.events += 1
        return SimpleNamespace(
            name='event',
            record=lambda stream: self.asked.append(('event', stream.name)),
            query=lambda: self.is_done,
            synchronize=lambda: self.asked.append('host waits'),
        )

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        assert str(device) == 'cuda:1'
        return self.current

    def set_stream(self, stream: SimpleNamespace) -> None:
        self.current, self.index = stream, 1  # as on a device

    def set_device(self, index: int) -> None:
        self.index = index

    def pair(self, name: str) -> tuple[Any, Any]:
        def copy(source: str, non_blocking: bool) -> None:
            if source == 'broken':
                raise RuntimeError('broken')
            self.asked.append((self.current.name, 'copies', source, non_blocking))

        return SimpleNamespace(copy_=copy), name


@pytest.mark.parametrize('has_seam', [True, False])
def test_copies_run_on_the_side_stream(has_seam: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStreams(monkeypatch, has_seam)
    stream = SideStream(torch.device('cuda:1'))
    event = stream.copy([fake.pair('a'), fake.pair('b')])
    assert fake.asked == [
        ('side of cuda:1', 'waits for', 'computing'),
        ('side of cuda:1', 'copies', 'a', True),
        ('side of cuda:1', 'copies', 'b', True),
        ('event', 'side of cuda:1'),
    ]
    assert (fake.current.name, fake.index) == ('computing', 0)
    stream.make_current_wait(event)
    assert fake.asked[4:] == [('computing', 'waits for', 'event')]


@pytest.mark.parametrize('has_seam', [True, False])
def test_content_is_referenced_until_it_was_read(
    has_seam: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeStreams(monkeypatch, has_seam)
    stream, contents = SideStream(torch.device('cuda:1')), [{1}, {2}]
    held = [weakref.ref(content) for content in contents]
    with stream.overlapped():
        assert fake.current.name == 'side of cuda:1'
        for content in contents:
            event = stream.keep(content)
    assert fake.current.name == 'computing'
    assert (
        fake.asked
        == [('side of cuda:1', 'waits for', 'computing')] + [('event', 'side of cuda:1')] * 2
    )
    del content, contents
    stream.release()
    assert all(content() is not None for content in held)
    fake.is_done = True
    stream.release()
    assert all(content() is None for content in held)
    for _ in range(3):
        event = stream.keep(set())
        stream.make_current_wait(event)
        stream.release()
    assert fake.events == 2
    assert 'host waits' not in fake.asked


def test_a_failure_restores_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeStreams(monkeypatch, has_seam=True)
    stream = SideStream(torch.device('cuda:1'))
    with pytest.raises(RuntimeError, match='broken'):
        stream.copy([fake.pair('broken')])
    assert (fake.current.name, fake.index) == ('computing', 0)
