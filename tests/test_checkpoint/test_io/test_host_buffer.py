"""Memory that is used again, and that another process sees."""

from __future__ import annotations

import errno
import gc
import os
import weakref
from typing import Any

import pytest
import torch

from mmtempo.checkpoint.io import host_buffer
from mmtempo.checkpoint.io.host_buffer import ALIGNMENT, HostBuffer, is_dense, room
from mmtempo.checkpoint.io.writer_process import _open
from tests.testing.trees import tensors

NO_GAPS = ('plain', 'channels_last', 'transposed', 'one_long', 'bf16', 'bool', 'scalar', 'complex')


def area_for(*given: torch.Tensor) -> HostBuffer:
    area = HostBuffer()
    area.reserve(sum(map(room, given)))
    return area


@pytest.mark.parametrize('name', list(tensors()))
def test_room_like_a_tensor(name: str) -> None:
    tensor = tensors()[name]
    area = area_for(tensor)
    like = area.allocate_like(tensor)
    assert (like.shape, like.dtype, like.device.type) == (tensor.shape, tensor.dtype, 'cpu')
    assert not like.requires_grad
    if name in NO_GAPS:
        assert like.stride() == tensor.stride()
    else:
        assert like.is_contiguous()
    # Nothing of what surrounds it gets into the file.
    assert like.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    area.close()


def test_dense() -> None:
    given = tensors()
    assert [name for name in given if not is_dense(given[name])] == ['expanded', 'sliced']
    assert not is_dense(torch.zeros(2, 2).as_strided((2, 2), (1, 1)))  # overlapping


def test_each_has_its_own_place() -> None:
    given = list(tensors().values())
    area = area_for(*given)
    copies = [area.allocate_like(tensor) for tensor in given]
    assert area.wanted == sum(map(room, given)) <= area.size
    for number, copy in enumerate(copies):
        copy.copy_(torch.full(copy.shape, number % 2))
    assert all(bool((copy == number % 2).all()) for number, copy in enumerate(copies))
    places = [area.offset(copy.data_ptr(), copy.nbytes) for copy in copies if copy.numel()]
    assert all(place is not None and place % ALIGNMENT == 0 for place in places)
    area.close()


def test_offset_is_of_this_memory_alone() -> None:
    area = HostBuffer()
    assert area.offset(64, 1) is None
    area.reserve(100)
    start = area.allocate_like(torch.zeros(1, dtype=torch.uint8)).data_ptr()
    assert area.offset(start, area.size) == 0
    assert area.offset(start + 1, area.size) is None
    assert area.offset(start - 1, 1) is None
    area.close()


def test_past_the_end_nothing_is_given() -> None:
    area = HostBuffer()
    tensor = torch.zeros(5)
    assert area.allocate_like(tensor) is tensor
    assert area.allocate_like(tensor) is tensor
    assert (area.wanted, area.size) == (2 * ALIGNMENT, 0)
    area.clear()
    assert area.wanted == 0
    area.close()


def test_the_same_places_again() -> None:
    given = list(tensors().values())
    area = area_for(*given)
    first = [area.allocate_like(tensor) for tensor in given]
    for _ in range(3):
        area.clear()
        assert all(area.allocate_like(tensor) is copy for tensor, copy in zip(given, first))
    area.close()


def test_a_layout_that_changes_each_time_does_not_pile_up() -> None:
    area = HostBuffer()
    area.reserve(1 << 16)
    past = []
    for length in range(1, 20):
        area.clear()
        copies = [area.allocate_like(torch.zeros(16 * length)), area.allocate_like(torch.zeros(3))]
        past += [weakref.ref(copy) for copy in copies]
        del copies
    gc.collect()
    assert sum(copy() is not None for copy in past) <= 4
    area.close()


def test_another_sees_it_also_when_it_has_grown() -> None:
    area = HostBuffer()
    assert area.address is None
    addresses = []
    for length in (10, 100_000):
        area.clear()
        area.reserve(length)
        copy = area.allocate_like(torch.zeros(length, dtype=torch.uint8))
        copy.copy_(torch.arange(length) % 251)
        address = area.address
        assert address is not None
        addresses.append(address)
        memory = _open(address[0])
        assert memory is not None
        assert len(memory) == address[1] == area.size >= length
        assert bytes(memory[:length]) == bytes(copy.tolist())
    assert addresses[0] != addresses[1]  # it must be opened again
    area.reserve(5)
    assert area.address == addresses[1]
    area.close()


def test_no_memory_is_an_error_and_the_next_try_can_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise OSError(errno.ENOMEM, 'no memory')

    area = HostBuffer()
    area.reserve(10)
    with monkeypatch.context() as patch:
        patch.setattr(os, 'posix_fallocate', fails)
        with pytest.raises(OSError, match='no memory'):
            area.reserve(1 << 20)
        assert (area.size, area.address) == (0, None)
        assert area.allocate_like(tensor := torch.zeros(3)) is tensor
    area.reserve(1 << 20)
    assert area.size == 1 << 20
    area.close()


def mappings() -> int:
    with open('/proc/self/maps') as file:
        return sum('mmtempo-checkpoint' in line for line in file)


def test_nothing_is_left_after_close() -> None:
    before = len(os.listdir('/proc/self/fd')), mappings()
    area = HostBuffer()
    for size in (10, 10_000, 1_000_000):
        area.reserve(size)
        area.clear()
        area.allocate_like(torch.zeros(2))
    assert mappings() == before[1] + 1
    area.close()
    area.close()
    assert (len(os.listdir('/proc/self/fd')), mappings()) == before


def test_where_memory_has_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, 'memfd_create')
    monkeypatch.delattr(os, 'posix_fallocate')
    area = HostBuffer()
    area.reserve(100)
    area.allocate_like(torch.zeros(2, dtype=torch.uint8)).fill_(7)
    assert area.address is not None
    name, size = area.address
    assert os.path.getsize(name) == size
    memory = _open(name)
    assert memory is not None
    assert bytes(memory[:3]) == b'\7\7\0'
    area.close()
    assert not os.path.exists(name)


@pytest.mark.parametrize('can', [True, False])
def test_pinned_until_it_is_given_back(can: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []

    def pin(memory: torch.Tensor, device: torch.device) -> bool:
        done.append(('pin', memory.numel()))
        return can

    def unpin(memory: torch.Tensor, device: torch.device) -> None:
        assert device == torch.device('cuda:1')
        done.append(('unpin', memory.numel()))

    monkeypatch.setattr(host_buffer, 'pin_in_place', pin)
    monkeypatch.setattr(host_buffer, 'unpin', unpin)
    area = HostBuffer('cuda:1')
    area.reserve(4096)
    area.reserve(8192)
    area.close()
    area.close()
    expected = [('pin', 4096), ('unpin', 4096), ('pin', 8192), ('unpin', 8192)]
    assert done == [step for step in expected if can or step[0] == 'pin']


def test_memory_that_was_not_pinned_is_not_unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> bool:
        raise RuntimeError('no device')

    monkeypatch.setattr(host_buffer, 'pin_in_place', fails)
    monkeypatch.setattr(host_buffer, 'unpin', lambda *args: pytest.fail('it was not pinned'))
    area = HostBuffer('cuda')
    with pytest.raises(RuntimeError, match='no device'):
        area.reserve(4096)
    area.close()


def test_a_place_is_known_as_long_as_it_is_given_out() -> None:
    area = HostBuffer()
    area.reserve(4096)
    first, second = torch.ones(3), torch.ones(20)
    before = [area.allocate_like(one) for one in (first, second)]
    for one, start in zip(before, (0, 64)):
        place = area.place_of(one)
        assert place is not None
        assert (place.start, place.tensor is one) == (start, True)
        place.pickled = b'x'
    assert area.place_of(first) is None
    area.clear()
    assert area.allocate_like(first) is before[0]  # as it was
    assert area.place_of(before[0]).pickled == b'x'  # type: ignore[union-attr]
    for other in (second.double(), second.view(4, 5), second.view(4, 5).t(), second[:5]):
        copy = area.allocate_like(other)
        assert (copy.shape, copy.stride(), copy.dtype) == (
            other.shape,
            other.stride(),
            other.dtype,
        )
        assert area.place_of(before[1]) is None
        assert area.place_of(copy).pickled is None  # type: ignore[union-attr]
        area.clear()
        area.allocate_like(first)
    area.clear()
    area.clear()
    assert area.place_of(before[0]) is None  # nobody has asked for it
    found = area.allocate_like(first)
    area.reserve(8192)
    assert area.place_of(found) is None
    area.close()
