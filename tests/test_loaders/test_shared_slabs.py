"""Slabs are reused, but never while a tensor of their last batch is referenced."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmtempo.loaders import shared_slabs
from mmtempo.loaders.shared_slabs import MIN_SIZE, Packed, SlabPool, pack


@pytest.fixture
def pool() -> Any:
    found = SlabPool(MIN_SIZE)
    yield found
    found.close()
    shared_slabs._mapped.clear()


def numbers(seed: int, count: int = 1000) -> torch.Tensor:
    return torch.arange(seed, seed + count, dtype=torch.int32)


def crossed(pool: SlabPool, batch: Any, make: Callable | None = None) -> Any:
    """Pack a batch in this process and check that little of it would pass a pipe."""
    lease = pool.lease()
    packed = pack(lease, make or (lambda samples: samples), batch)
    assert len(pickle.dumps(packed)) < 4000
    return packed, lease


def arrived(pool: SlabPool, batch: Any) -> Any:
    return crossed(pool, batch)[0].read()


def test_batch_arrives_unchanged(pool: SlabPool) -> None:
    batch = dict(
        image=numbers(0).view(10, 100),
        label=numbers(5, 7).to(torch.uint8),
        turned=numbers(0, 12).view(3, 4).t(),
        none=torch.empty(0, 3),
        one=torch.tensor(3.5, dtype=torch.float64),
        names=['a', 'b'],
        nested=[(numbers(9, 3), 4)],
    )
    found = arrived(pool, batch)
    for key in ('image', 'label', 'turned', 'none', 'one'):
        assert torch.equal(found[key], batch[key])
        assert found[key].dtype is batch[key].dtype
    assert found['names'] == ['a', 'b']
    assert torch.equal(found['nested'][0][0], numbers(9, 3))


def test_nested_tensor_is_left_to_torch(pool: SlabPool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # torch deprecates this layout
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    packed = pack(pool.lease(), list, [nested, numbers(3)])
    assert isinstance(packed, Packed)
    found = packed.read()
    assert [each.tolist() for each in found[0].unbind()] == [[1], [1, 1]]
    assert torch.equal(found[1], numbers(3))


def test_slab_is_reused_when_its_last_tensor_is_deleted(pool: SlabPool) -> None:
    first = arrived(pool, dict(a=numbers(0), b=numbers(1)))
    part = first['b'][10:20]  # a view of it
    del first
    gc.collect()
    second = arrived(pool, dict(a=numbers(100)))
    assert part.tolist() == list(range(11, 21))
    assert len(pool._maps) == 2
    del part
    gc.collect()
    third = arrived(pool, dict(a=numbers(200)))
    assert len(pool._maps) == 2
    assert second['a'][0] == 100
    assert third['a'][0] == 200


def test_number_of_slabs_stays_bounded(pool: SlabPool) -> None:
    held: list[Any] = []
    for number in range(200):
        held = [*held[-2:], arrived(pool, dict(a=numbers(number)))]
        assert [int(one['a'][0]) for one in held] == list(range(number + 1))[-3:]
    assert len(pool._maps) <= 5


def test_tensor_larger_than_the_slab_is_pickled_and_the_next_slab_fits(pool: SlabPool) -> None:
    large = torch.zeros(2 * MIN_SIZE, dtype=torch.uint8)

    def make(samples: list) -> dict:
        made = shared_slabs.new_tensor(large.shape, large.dtype)
        assert made is not None
        return dict(a=made.copy_(large), b=numbers(3))

    lease = pool.lease()
    packed = pack(lease, make, [])
    assert lease.size < packed.needed < 1.1 * large.nbytes  # each is counted once
    assert len(packed.content) > large.nbytes
    found = packed.read()
    assert torch.equal(found['a'], large)
    assert torch.equal(found['b'], numbers(3))
    del found
    gc.collect()
    packed, lease = crossed(pool, dict(a=large))
    assert packed.needed <= lease.size
    assert len(pool._maps) == 1  # the small one was closed


def test_discarded_slab_is_not_reused(pool: SlabPool) -> None:
    lease = pool.lease()
    pool.discard(lease)
    assert pool.lease().number != lease.number


def test_tensor_made_in_the_slab_is_not_copied(pool: SlabPool) -> None:
    addresses = []

    def make(samples: list) -> torch.Tensor:
        out = shared_slabs.new_tensor((2, 1000), torch.int32)
        assert out is not None
        torch.stack(samples, out=out)
        addresses.append(out.data_ptr())
        return out

    packed, lease = crossed(pool, [numbers(1), numbers(2)], make)
    assert packed.needed == 8000
    assert addresses[0] == shared_slabs._Writer(lease)._start
    assert torch.equal(packed.read(), torch.stack([numbers(1), numbers(2)]))
    assert shared_slabs.new_tensor((1,), torch.int32) is None  # outside of `pack`


def test_unreachable_slab_gives_the_plain_batch(pool: SlabPool) -> None:
    lease = pool.lease()._replace(path='/proc/self/fd/no', number=-1)
    batch = dict(a=numbers(1))
    assert pack(lease, dict, batch) == batch


def test_workers_unmap_closed_slabs(pool: SlabPool) -> None:
    leases = [pool.lease() for _ in range(3)]
    for lease in leases:
        pack(lease, list, [numbers(1)])
    assert set(shared_slabs._mapped) == {lease.number for lease in leases}
    for lease in leases:
        pool.discard(lease)
    last = pool.lease()
    pack(last, list, [numbers(1)])
    assert set(shared_slabs._mapped) == {last.number}


def send(connection: Any, lease: Any) -> None:
    connection.send(pack(lease, list, [numbers(7)]))


def test_batch_of_an_ended_process_can_be_read(pool: SlabPool) -> None:
    here, there = multiprocessing.Pipe()
    lease = pool.lease()
    process = multiprocessing.get_context('fork').Process(target=send, args=(there, lease))
    process.start()
    packed = here.recv()
    process.join()
    assert isinstance(packed, Packed)
    assert torch.equal(packed.read()[0], numbers(7))


def test_close_closes_all_files() -> None:
    before = len(os.listdir('/proc/self/fd'))
    pool = SlabPool(MIN_SIZE)
    for _ in range(3):
        pool.lease()
    pool.close()
    assert len(os.listdir('/proc/self/fd')) == before


def test_pinning_frees_the_slab(pool: SlabPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, 'pin_memory', lambda self, *args: self.clone())
    packed, lease = crossed(pool, dict(a=numbers(1)))
    found = packed.pin_memory().read()
    gc.collect()
    assert pool.lease().number == lease.number
    assert torch.equal(found['a'], numbers(1))
