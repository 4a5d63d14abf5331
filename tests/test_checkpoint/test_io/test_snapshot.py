"""What is taken is what was there, whatever changes afterwards."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from typing import Any

import pytest
import torch

from mmtempo.checkpoint.io import snapshot as module
from mmtempo.checkpoint.io.host_buffer import HostBuffer
from mmtempo.checkpoint.io.snapshot import Deferred, Snapshot, TornError
from tests.testing.trees import History, bits, same, tensors, tree


@pytest.fixture
def area() -> Iterator[HostBuffer]:
    area = HostBuffer()
    yield area
    area.close()


def change(tensor: torch.Tensor) -> None:
    """Every byte of it."""
    with torch.no_grad():
        if tensor.dtype == torch.bool:
            tensor.logical_not_()
        elif 0 in tensor.stride():
            tensor[0].add_(1)
        else:
            tensor.copy_(torch.full(tensor.shape, 77, dtype=tensor.dtype))


def in_thread(function: Any) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_late_and_early_tensors_have_their_old_values(area: HostBuffer) -> None:
    snapshot = Snapshot(area)
    for turn in range(3):  # the first one makes room
        given = {'late': tensors(), 'early': tensors()}
        for number, tensor in enumerate([*given['late'].values(), *given['early'].values()]):
            if turn and tensor.dtype == torch.float32 and 0 not in tensor.stride():
                tensor.detach().fill_(number + turn)
        expected = copy.deepcopy(given)
        late = {tensor.data_ptr() for tensor in given['late'].values()} - {0}
        [frozen] = snapshot.take([given], late)
        for tensor in given['early'].values():
            change(tensor)
        in_thread(snapshot.finish)
        assert snapshot.fence() == 0.0
        for tensor in given['late'].values():
            change(tensor)
        for part in ('late', 'early'):
            for name, tensor in expected[part].items():
                assert bits(frozen[part][name]) == bits(tensor), (part, name)
        assert not same(given['late'], expected['late'])
        assert not same(given['early'], expected['early'])


def test_late_ones_are_not_copied_by_the_training(
    area: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[tuple[str, int]] = []
    original = module._copy

    def noting(pairs: list) -> None:
        copied.append((threading.current_thread().name, len(pairs)))
        original(pairs)

    monkeypatch.setattr(module, '_copy', noting)
    snapshot = Snapshot(area)
    late, early = torch.ones(3), [torch.ones(2), torch.ones(1)]
    snapshot.take([[late, *early]], {late.data_ptr()})
    thread = threading.Thread(target=snapshot.finish, name='writer')
    thread.start()
    thread.join()
    assert copied == [('MainThread', 2), ('writer', 1)]


def test_what_is_no_tensor_is_copied_as_well(area: HostBuffer) -> None:
    given: dict[str, Any] = dict(
        numbers=[1, 2],
        nested=dict(deep=(dict(lr=0.1),)),
        counter=Counter(a=1),
        history=History(),
        ordered=OrderedDict(x=1),
        parameter=torch.nn.Parameter(torch.ones(2)),
        sparse=torch.eye(3).to_sparse(),
    )
    given['ordered']._metadata = {'': {'version': 1}}
    expected = copy.deepcopy(given)
    metadata = copy.deepcopy(given['ordered']._metadata)
    [frozen] = Snapshot(area).take([given])
    given['numbers'].append(3)
    given['nested']['deep'][0]['lr'] = 9
    given['counter']['a'] += 5
    given['history'].values[:] = 0
    given['history'].windows['loss'].append(3)
    given['ordered']['x'] = 2
    given['ordered']._metadata['']['version'] = 3
    with torch.no_grad():
        given['parameter'].zero_()
        given['sparse']._values().zero_()
    assert torch.equal(frozen['sparse'].to_dense(), torch.eye(3))
    assert type(frozen['parameter']) is torch.nn.Parameter
    assert frozen['ordered']._metadata == metadata
    for one in (frozen, expected):
        one.pop('sparse')
    assert same(frozen, expected)


def test_tied_weights_stay_tied_and_are_copied_once(area: HostBuffer) -> None:
    snapshot = Snapshot(area)
    weight = torch.randn(1000)
    step, best = snapshot.take([dict(a=weight, b=weight.detach()), dict(best=weight)])
    assert step['a'] is step['b'] is best['best']
    assert step['a'].data_ptr() != weight.data_ptr()
    assert area.wanted < 2 * weight.nbytes
    # Of another shape it is another tensor.
    [views] = snapshot.take([[weight, weight[:10], weight.view(10, 100)]])
    assert [view.shape for view in views] == [(1000,), (10,), (10, 100)]


def test_memory_is_reserved_once_and_used_again(
    area: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = []
    original = HostBuffer.reserve

    def reserve(self: HostBuffer, size: int) -> None:
        reserved.append(size)
        original(self, size)

    monkeypatch.setattr(HostBuffer, 'reserve', reserve)
    snapshot = Snapshot(area)
    places = set()
    for _ in range(4):
        given = tree()
        [frozen] = snapshot.take([given])
        snapshot.finish()
        state = frozen['state_dict'].values()
        places.add(tuple(tensor.data_ptr() for tensor in state if tensor.numel()))
    assert len(reserved) == len(places) == 1
    given['more'] = torch.ones(5000)
    [frozen] = snapshot.take([given])
    snapshot.finish()
    assert len(reserved) == 2
    assert same(frozen['more'], given['more'])
    assert same(frozen['state_dict']['plain'], given['state_dict']['plain'])


def test_a_change_in_between_is_noticed(area: HostBuffer) -> None:
    snapshot = Snapshot(area)
    late, early = torch.ones(3), torch.ones(3)
    snapshot.take([[late, early]], {late.data_ptr()})
    early.add_(1)
    late.add_(1)
    with pytest.raises(TornError, match='changed by the forward or backward'):
        snapshot.finish()
    assert snapshot.fence() == 0.0  # nobody waits for it
    [frozen] = snapshot.take([[late]], {late.data_ptr()})
    snapshot.finish()
    assert torch.equal(frozen[0], late)


def test_the_fence_waits_for_the_copy(area: HostBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    go, done = threading.Event(), []

    class Staged(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            go.set()  # not before somebody waits here
            return super().wait(timeout)

    def finish() -> None:
        go.wait()
        snapshot.finish()
        done.append('copied')

    snapshot = Snapshot(area)
    snapshot._staged = Staged()
    snapshot._staged.set()
    late = torch.zeros(3)
    [frozen] = snapshot.take([[late]], {late.data_ptr()})
    thread = threading.Thread(target=finish)
    thread.start()
    waited = snapshot.fence()
    done.append('passed')
    late.fill_(1)
    go.set()
    thread.join()
    assert torch.equal(frozen[0], torch.zeros(3))
    assert waited > 0
    assert set(done) == {'copied', 'passed'}


def test_a_copy_that_fails_lets_the_training_go_on(
    area: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = Snapshot(area)
    late = torch.ones(3)
    snapshot.take([[late]], {late.data_ptr()})

    def fails(pairs: list) -> None:
        raise MemoryError

    monkeypatch.setattr(module, '_copy', fails)
    with pytest.raises(MemoryError):
        snapshot.finish()
    assert snapshot.fence() == 0.0


class OnDevice(torch.Tensor):
    """A tensor that says it is elsewhere."""

    where = 'cuda:0'

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(self.where)


def on(where: str, value: float) -> OnDevice:
    tensor = torch.full((3,), value).as_subclass(OnDevice)
    tensor.where = where
    return tensor


class FakeStream:
    """Copies when it is told to, long after it was asked."""

    asked: list[Any]

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.asked.append(('stream', str(device)))
        self._waiting: list[list] = []

    def copy(self, pairs: list) -> int:
        self._waiting.append(pairs)
        event = len(self._waiting) - 1
        self.asked.append(('copy', event, [float(source[0]) for _, source in pairs]))
        return event

    def hold(self, event: int) -> None:
        self.asked.append(('hold', event))

    def wait(self, event: int) -> None:
        self.asked.append(('wait', event, threading.current_thread().name))
        for target, source in self._waiting[event]:
            target.copy_(source)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the device."""
    FakeStream.asked = []
    monkeypatch.setattr(module, 'SideStream', FakeStream)
    monkeypatch.setattr(module, 'Tensor', OnDevice)
    return FakeStream.asked


def addresses(*given: torch.Tensor) -> Collection[int]:
    return {tensor.data_ptr() for tensor in given}


def test_with_a_device_the_host_never_waits(area: HostBuffer, asked: list) -> None:
    snapshot = Snapshot(area)
    late, early = on('cuda:0', 1), on('cuda:0', 2)
    [frozen] = snapshot.take([[late, early]], addresses(late))
    # What may change at once is waited for by the device, the rest at the fence.
    assert asked == [('stream', 'cuda:0'), ('copy', 0, [2.0]), ('hold', 0), ('copy', 1, [1.0])]
    assert snapshot.fence() == 0.0
    assert asked[4:] == [('hold', 1)]
    thread = threading.Thread(target=snapshot.finish, name='writer')
    thread.start()
    thread.join()
    assert asked[5:] == [('wait', 1, 'writer')]
    assert torch.equal(frozen[0], torch.full((3,), 1.0))
    # The stream is there for the next one; a fence after the end has nothing to hold for.
    snapshot.take([[late, early]], addresses(late))
    assert [step for step in asked if step[0] == 'stream'] == [('stream', 'cuda:0')]


def test_values_of_the_host_are_made_late_with_a_device_too(area: HostBuffer, asked: list) -> None:
    """Making them may wait for a copy from the device, which `take` must not."""
    made: list[str] = []

    def make() -> list:
        made.append(threading.current_thread().name)
        return [1, 2]

    snapshot = Snapshot(area)
    content = dict(weight=on('cuda:0', 1), history=Deferred(make, is_of_host=True), after=3)
    for _ in range(2):  # the first one makes room
        made.clear()
        [frozen] = snapshot.take([content])
        assert made == []
        thread = threading.Thread(target=snapshot.finish, name='writer')
        thread.start()
        thread.join()
        assert made == ['writer']
        assert list(frozen) == ['weight', 'history', 'after']
        assert frozen['history'] == [1, 2]


def test_early_copies_are_before_late_ones_on_one_stream(area: HostBuffer, asked: list) -> None:
    """So the last event is enough for both."""
    snapshot = Snapshot(area)
    given = [on('cuda:0', 1), on('cuda:0', 2), on('cuda:0', 3)]
    snapshot.take([given], addresses(given[1]))
    assert [step[2] for step in asked if step[0] == 'copy'] == [[1.0, 3.0], [2.0]]


def test_what_lies_on_the_host_is_not_late_beside_a_device(area: HostBuffer, asked: list) -> None:
    """Adam counts its steps on the host; the fence cannot wait for those and not for the device."""
    snapshot = Snapshot(area)
    weight, step = on('cuda:0', 1), on('cpu', 5)
    [frozen] = snapshot.take([[weight, step]], addresses(weight, step))
    snapshot.fence()
    step.add_(1)
    snapshot.finish()
    assert frozen[1].tolist() == [5.0] * 3


def test_without_asynchronous_copies_all_is_copied_at_once(area: HostBuffer, asked: list) -> None:
    snapshot = Snapshot(area)
    weight = on('mps', 1)
    [frozen] = snapshot.take([[weight]], addresses(weight))
    weight.add_(1)
    assert frozen[0].tolist() == [1.0] * 3
    snapshot.finish()
    assert asked == []


def test_late_parts_are_gone_through_late(area: HostBuffer) -> None:
    """Their structure as well: what is added to them before the fence is part of them."""
    snapshot = Snapshot(area)
    for turn in range(2):
        state = {0: {'step': torch.tensor(1.0), 'avg': torch.ones(40)}}
        tied = torch.full((40,), 3.0)
        given = dict(
            a=tied, state=Deferred(lambda state=state: state), b=Deferred(lambda tied=tied: tied)
        )
        given['groups'] = [dict(lr=0.1)]
        [frozen] = snapshot.take([given])
        assert list(frozen) == ['a', 'state', 'b', 'groups']
        state[0]['more'] = torch.zeros(5000)
        in_thread(snapshot.finish)
        state[0]['avg'].zero_()
        state[0]['more'].add_(1)
        state[1] = {}
        tied.zero_()
        assert list(frozen) == ['a', 'state', 'b', 'groups']
        assert same(frozen['state'][0]['avg'], torch.ones(40))
        assert same(frozen['state'][0]['more'], torch.zeros(5000))
        assert list(frozen['state']) == [0]
        assert frozen['b'] is frozen['a']
        assert same(frozen['a'], torch.full((40,), 3.0))
        inside = area.offset(frozen['state'][0]['more'].data_ptr(), 20000) is not None
        assert inside == (turn > 0)  # there was no room for it the first time


def test_late_parts_of_a_device_are_gone_through_at_once(asked: list) -> None:
    """The training starts its copies, behind those that are waited for at once."""
    area = HostBuffer('mps')  # of some device, which is not asked
    snapshot = Snapshot(area)
    given = dict(state=Deferred(lambda: {0: dict(x=on('cuda:0', 1))}), buffer=on('cuda:0', 2))
    [frozen] = snapshot.take([given])
    assert [step[2] for step in asked if step[0] == 'copy'] == [[2.0], [1.0]]
    assert torch.equal(frozen['buffer'], torch.zeros(3))  # it is on its way
    snapshot.finish()
    snapshot.fence()
    area.close()


@pytest.mark.parametrize('fenced', [False, True])
@pytest.mark.parametrize('changed', [False, True])
def test_on_a_device_too_what_a_forward_pass_changes_is_noticed(
    area: HostBuffer, asked: list, changed: bool, fenced: bool
) -> None:
    """What is changed behind the fence is not: the device makes it wait."""
    snapshot = Snapshot(area)
    weight = on('cuda:0', 1)
    snapshot.take([[weight]], addresses(weight))
    if changed:
        weight.add_(1)
    if fenced:
        snapshot.fence()
        weight.add_(1)
    with pytest.raises(TornError) if changed else contextlib.nullcontext():
        snapshot.finish()
