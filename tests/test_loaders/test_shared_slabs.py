"""Batches cross in memory that is used again, but never while somebody reads it."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmtempo.loaders import shared_slabs
from mmtempo.loaders.shared_slabs import LEAST, Packed, SlabPool, pack


@pytest.fixture
def memory() -> Any:
    found = SlabPool(LEAST)
    yield found
    found.close()
    shared_slabs._mapped.clear()


def numbers(seed: int, count: int = 1000) -> torch.Tensor:
    return torch.arange(seed, seed + count, dtype=torch.int32)


def crossed(memory: SlabPool, batch: Any, make: Callable | None = None) -> Any:
    """What comes of a batch: through a pipe, in the same process."""
    loan = memory.lend()
    packed = pack(loan, make or (lambda samples: samples), batch)
    assert len(pickle.dumps(packed)) < 4000
    return packed, loan


def arrived(memory: SlabPool, batch: Any) -> Any:
    packed, loan = crossed(memory, batch)
    found = packed.read()
    memory.done(loan)
    return found


def test_what_comes_is_what_was_sent(memory: SlabPool) -> None:
    batch = dict(
        image=numbers(0).view(10, 100),
        label=numbers(5, 7).to(torch.uint8),
        turned=numbers(0, 12).view(3, 4).t(),
        none=torch.empty(0, 3),
        one=torch.tensor(3.5, dtype=torch.float64),
        names=['a', 'b'],
        nested=[(numbers(9, 3), 4)],
    )
    found = arrived(memory, batch)
    for key in ('image', 'label', 'turned', 'none', 'one'):
        assert torch.equal(found[key], batch[key])
        assert found[key].dtype is batch[key].dtype
    assert found['names'] == ['a', 'b']
    assert torch.equal(found['nested'][0][0], numbers(9, 3))


def test_a_slab_is_used_again_when_the_last_reader_has_gone(memory: SlabPool) -> None:
    first = arrived(memory, dict(a=numbers(0), b=numbers(1)))
    part = first['b'][10:20]  # a view of it
    del first
    gc.collect()
    second = arrived(memory, dict(a=numbers(100)))
    assert part.tolist() == list(range(11, 21))
    assert len(memory._maps) == 2
    del part
    gc.collect()
    third = arrived(memory, dict(a=numbers(200)))
    assert len(memory._maps) == 2
    assert second['a'][0] == 100
    assert third['a'][0] == 200


def test_for_ever_no_more_than_are_needed(memory: SlabPool) -> None:
    held: list[Any] = []
    for number in range(200):
        held = [*held[-2:], arrived(memory, dict(a=numbers(number)))]
        assert [int(one['a'][0]) for one in held] == list(range(number + 1))[-3:]
    assert len(memory._maps) <= 5


def test_what_does_not_fit_crosses_by_value_and_the_next_fits(memory: SlabPool) -> None:
    large = torch.zeros(2 * LEAST, dtype=torch.uint8)

    def make(samples: list) -> dict:
        made = shared_slabs.new_tensor(large.shape, large.dtype)
        assert made is not None
        return dict(a=made.copy_(large), b=numbers(3))

    loan = memory.lend()
    packed = pack(loan, make, [])
    assert loan.size < packed.needed < 1.1 * large.nbytes  # each is counted once
    assert len(packed.content) > large.nbytes
    found = packed.read()
    memory.done(loan)
    assert torch.equal(found['a'], large)
    assert torch.equal(found['b'], numbers(3))
    del found
    gc.collect()
    packed, loan = crossed(memory, dict(a=large))
    assert packed.needed <= loan.size
    assert len(memory._maps) == 1  # the small one has gone


def test_a_batch_that_used_no_slab(memory: SlabPool) -> None:
    loan = memory.lend()
    memory.done(loan)
    assert memory.lend().number == loan.number


def test_a_slab_that_may_still_be_written_is_not_used_again(memory: SlabPool) -> None:
    loan = memory.lend()
    memory.forget(loan)
    assert memory.lend().number != loan.number


def test_stacked_in_place(memory: SlabPool) -> None:
    """What is made in the slab is not copied."""
    addresses = []

    def make(samples: list) -> torch.Tensor:
        out = shared_slabs.new_tensor((2, 1000), torch.int32)
        assert out is not None
        torch.stack(samples, out=out)
        addresses.append(out.data_ptr())
        return out

    packed, loan = crossed(memory, [numbers(1), numbers(2)], make)
    assert packed.needed == 8000
    assert addresses[0] == shared_slabs._Writer(loan)._start
    assert torch.equal(packed.read(), torch.stack([numbers(1), numbers(2)]))
    assert shared_slabs.new_tensor((1,), torch.int32) is None  # no batch is being made


def test_where_slabs_are_out_of_reach(memory: SlabPool) -> None:
    loan = memory.lend()._replace(path='/proc/self/fd/no', number=-1)
    batch = dict(a=numbers(1))
    assert pack(loan, dict, batch) == batch


def test_workers_let_go_of_slabs_that_were_closed(memory: SlabPool) -> None:
    loans = [memory.lend() for _ in range(3)]
    for loan in loans:
        pack(loan, list, [numbers(1)])
    assert set(shared_slabs._mapped) == {loan.number for loan in loans}
    for loan in loans:
        memory.forget(loan)
    last = memory.lend()
    pack(last, list, [numbers(1)])
    assert set(shared_slabs._mapped) == {last.number}


def send(connection: Any, loan: Any) -> None:
    connection.send(pack(loan, list, [numbers(7)]))


def test_from_another_process(memory: SlabPool) -> None:
    """Also when that has ended since: what it made is not lost."""
    here, there = multiprocessing.Pipe()
    loan = memory.lend()
    process = multiprocessing.get_context('fork').Process(target=send, args=(there, loan))
    process.start()
    packed = here.recv()
    process.join()
    assert isinstance(packed, Packed)
    assert torch.equal(packed.read()[0], numbers(7))


def test_files_are_closed() -> None:
    before = len(os.listdir('/proc/self/fd'))
    memory = SlabPool(LEAST)
    for loan in [memory.lend() for _ in range(3)]:
        memory.done(loan)
    memory.close()
    assert len(os.listdir('/proc/self/fd')) == before


def test_pinned_batches_free_their_slab_at_once(
    memory: SlabPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, 'pin_memory', lambda self, *args: self.clone())
    packed, loan = crossed(memory, dict(a=numbers(1)))
    found = packed.pin_memory().read()
    memory.done(loan)
    gc.collect()
    assert memory.lend().number == loan.number
    assert torch.equal(found['a'], numbers(1))
