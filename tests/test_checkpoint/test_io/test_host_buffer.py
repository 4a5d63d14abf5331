"""Memory that is reused, and that another process can map."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from typing import Any

import pytest
import torch

from mmtempo.checkpoint.io import host_buffer
from mmtempo.checkpoint.io.host_buffer import HostBuffer, slot_size
from mmtempo.checkpoint.io.writer_process import ALIGNMENT, _open
from tests.testing.trees import tensors

NO_GAPS = ('plain', 'channels_last', 'transposed', 'one_long', 'bf16', 'bool', 'scalar', 'complex')


def buffer_for(*given: torch.Tensor) -> HostBuffer:
    buffer = HostBuffer()
    buffer.reserve(sum(map(slot_size, given)))
    return buffer


@pytest.mark.parametrize('name', list(tensors()))
def test_allocated_tensor_is_like_the_given_one(name: str) -> None:
    tensor = tensors()[name]
    buffer = buffer_for(tensor)
    like = buffer.allocate_like(tensor)
    assert (like.shape, like.dtype, like.device.type) == (tensor.shape, tensor.dtype, 'cpu')
    assert not like.requires_grad
    if name in NO_GAPS:
        assert like.stride() == tensor.stride()
    else:
        assert like.is_contiguous()
    # The storage is a record of the file: it must contain nothing else.
    assert like.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    buffer.close()


def test_overlapping_elements_get_separate_memory() -> None:
    tensor = torch.zeros(3).as_strided((2, 2), (1, 1))
    buffer = buffer_for(tensor)
    assert buffer.allocate_like(tensor).is_contiguous()
    buffer.close()


def test_slots_do_not_overlap() -> None:
    given = list(tensors().values())
    buffer = buffer_for(*given)
    copies = [buffer.allocate_like(tensor) for tensor in given]
    assert buffer.requested == sum(map(slot_size, given)) <= buffer.size
    for number, copy in enumerate(copies):
        copy.copy_(torch.full(copy.shape, number % 2))
    assert all(bool((copy == number % 2).all()) for number, copy in enumerate(copies))
    offsets = [buffer.offset(copy.data_ptr(), copy.nbytes) for copy in copies if copy.numel()]
    assert all(offset is not None and offset % ALIGNMENT == 0 for offset in offsets)
    buffer.close()


def test_offset_outside_of_the_buffer_is_none() -> None:
    buffer = HostBuffer()
    assert buffer.offset(64, 1) is None
    buffer.reserve(100)
    start = buffer.allocate_like(torch.zeros(1, dtype=torch.uint8)).data_ptr()
    assert buffer.offset(start, buffer.size) == 0
    assert buffer.offset(start + 1, buffer.size) is None
    assert buffer.offset(start - 1, 1) is None
    buffer.close()


def test_full_buffer_only_counts_requests() -> None:
    buffer = HostBuffer()
    tensor = torch.zeros(5)
    assert buffer.allocate_like(tensor) is tensor
    assert buffer.allocate_like(tensor) is tensor
    assert (buffer.requested, buffer.size) == (2 * ALIGNMENT, 0)
    buffer.clear()
    assert buffer.requested == 0
    buffer.close()


def test_same_layout_gets_the_same_tensors() -> None:
    given = list(tensors().values())
    buffer = buffer_for(*given)
    first = [buffer.allocate_like(tensor) for tensor in given]
    for _ in range(3):
        buffer.clear()
        assert all(buffer.allocate_like(tensor) is copy for tensor, copy in zip(given, first))
    buffer.close()


def test_changing_layouts_do_not_accumulate_tensors() -> None:
    buffer = HostBuffer()
    buffer.reserve(1 << 16)
    past = []
    for length in range(1, 20):
        buffer.clear()
        copies = [
            buffer.allocate_like(torch.zeros(16 * length)),
            buffer.allocate_like(torch.zeros(3)),
        ]
        past += [weakref.ref(copy) for copy in copies]
        del copies
    gc.collect()
    assert sum(copy() is not None for copy in past) <= 4
    buffer.close()


def test_another_process_can_map_it_after_it_has_grown() -> None:
    buffer = HostBuffer()
    assert buffer.address is None
    addresses = []
    for length in (10, 100_000):
        buffer.clear()
        buffer.reserve(length)
        copy = buffer.allocate_like(torch.zeros(length, dtype=torch.uint8))
        copy.copy_(torch.arange(length) % 251)
        address = buffer.address
        assert address is not None
        addresses.append(address)
        memory = _open(address[0])
        assert memory is not None
        assert len(memory) == address[1] == buffer.size >= length
        assert bytes(memory[:length]) == bytes(copy.tolist())
    assert addresses[0] != addresses[1]  # so that the other process maps it again
    buffer.reserve(5)
    assert buffer.address == addresses[1]
    buffer.close()


def test_missing_memory_raises_and_the_next_call_may_succeed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*args: Any) -> None:
        raise OSError(errno.ENOMEM, 'no memory')

    buffer = HostBuffer()
    buffer.reserve(10)
    with monkeypatch.context() as patch:
        patch.setattr(os, 'posix_fallocate', fails)
        with pytest.raises(OSError, match='no memory'):
            buffer.reserve(1 << 20)
        assert (buffer.size, buffer.address) == (0, None)
        assert buffer.allocate_like(tensor := torch.zeros(3)) is tensor
    buffer.reserve(1 << 20)
    assert buffer.size == 1 << 20
    buffer.close()


def mappings() -> int:
    with open('/proc/self/maps') as file:
        return sum('mmtempo-checkpoint' in line for line in file)


def test_close_releases_files_and_mappings() -> None:
    before = len(os.listdir('/proc/self/fd')), mappings()
    buffer = HostBuffer()
    for size in (10, 10_000, 1_000_000):
        buffer.reserve(size)
        buffer.clear()
        buffer.allocate_like(torch.zeros(2))
    assert mappings() == before[1] + 1
    buffer.close()
    buffer.close()
    assert (len(os.listdir('/proc/self/fd')), mappings()) == before


def test_temporary_file_where_memfd_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, 'memfd_create')
    monkeypatch.delattr(os, 'posix_fallocate')
    buffer = HostBuffer()
    buffer.reserve(100)
    buffer.allocate_like(torch.zeros(2, dtype=torch.uint8)).fill_(7)
    assert buffer.address is not None
    name, size = buffer.address
    assert os.path.getsize(name) == size
    memory = _open(name)
    assert memory is not None
    assert bytes(memory[:3]) == b'\7\7\0'
    buffer.close()
    assert not os.path.exists(name)


@pytest.mark.parametrize('can', [True, False])
def test_memory_is_pinned_until_it_is_released(can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []

    def pin(memory: torch.Tensor, device: torch.device) -> bool:
        done.append(('pin', memory.numel()))
        return can

    def unpin(memory: torch.Tensor, device: torch.device) -> None:
        assert device == torch.device('cuda:1')
        done.append(('unpin', memory.numel()))

    monkeypatch.setattr(host_buffer, 'pin_in_place', pin)
    monkeypatch.setattr(host_buffer, 'unpin', unpin)
    buffer = HostBuffer('cuda:1')
    buffer.reserve(4096)
    buffer.reserve(8192)
    buffer.close()
    buffer.close()
    expected = [('pin', 4096), ('unpin', 4096), ('pin', 8192), ('unpin', 8192)]
    assert done == [step for step in expected if can or step[0] == 'pin']


def test_memory_that_was_not_pinned_is_not_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> bool:
        raise RuntimeError('no device')

    monkeypatch.setattr(host_buffer, 'pin_in_place', fails)
    monkeypatch.setattr(host_buffer, 'unpin', lambda *args: pytest.fail('it was not pinned'))
    buffer = HostBuffer('cuda')
    with pytest.raises(RuntimeError, match='no device'):
        buffer.reserve(4096)
    buffer.close()


def test_slot_is_found_as_long_as_it_is_allocated() -> None:
    buffer = HostBuffer()
    buffer.reserve(4096)
    first, second = torch.ones(3), torch.ones(20)
    before = [buffer.allocate_like(one) for one in (first, second)]
    for one, start in zip(before, (0, 64)):
        slot = buffer.slot_of(one)
        assert slot is not None
        assert (slot.start, slot.tensor is one) == (start, True)
        slot.pickled = b'x'
    assert buffer.slot_of(first) is None
    buffer.clear()
    assert buffer.allocate_like(first) is before[0]  # the slot is reused
    assert buffer.slot_of(before[0]).pickled == b'x'  # type: ignore[union-attr]
    for other in (second.double(), second.view(4, 5), second.view(4, 5).t(), second[:5]):
        copy = buffer.allocate_like(other)
        assert (copy.shape, copy.stride(), copy.dtype) == (
            other.shape,
            other.stride(),
            other.dtype,
        )
        assert buffer.slot_of(before[1]) is None
        assert buffer.slot_of(copy).pickled is None  # type: ignore[union-attr]
        buffer.clear()
        buffer.allocate_like(first)
    buffer.clear()
    buffer.clear()
    assert buffer.slot_of(before[0]) is None  # not allocated since the first `clear`
    found = buffer.allocate_like(first)
    buffer.reserve(8192)
    assert buffer.slot_of(found) is None
    buffer.close()
