"""A snapshot has the values of its start; later changes wait for the copies or are detected."""

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
def buffer() -> Iterator[HostBuffer]:
    buffer = HostBuffer()
    yield buffer
    buffer.close()


def change(tensor: torch.Tensor) -> None:
    """Change every element."""
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


def test_late_and_early_tensors_have_their_old_values(buffer: HostBuffer) -> None:
    snapshot = Snapshot(buffer)
    for turn in range(3):  # the first turn reserves the memory
        content = {'late': tensors(), 'early': tensors()}
        for number, tensor in enumerate([*content['late'].values(), *content['early'].values()]):
            if turn and tensor.dtype == torch.float32 and 0 not in tensor.stride():
                tensor.detach().fill_(number + turn)
        expected = copy.deepcopy(content)
        late = {tensor.data_ptr() for tensor in content['late'].values()} - {0}
        [frozen] = snapshot.take([content], late)
        for tensor in content['early'].values():
            change(tensor)
        in_thread(snapshot.finish)
        assert snapshot.await_copies() == 0.0
        for tensor in content['late'].values():
            change(tensor)
        for part in ('late', 'early'):
            for name, tensor in expected[part].items():
                assert bits(frozen[part][name]) == bits(tensor), (part, name)
        assert not same(content['late'], expected['late'])
        assert not same(content['early'], expected['early'])


def test_late_tensors_are_copied_in_the_writer_thread(
    buffer: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[tuple[str, int]] = []
    original = module._copy

    def noting(pairs: list) -> None:
        copied.append((threading.current_thread().name, len(pairs)))
        original(pairs)

    monkeypatch.setattr(module, '_copy', noting)
    snapshot = Snapshot(buffer)
    late, early = torch.ones(3), [torch.ones(2), torch.ones(1)]
    snapshot.take([[late, *early]], {late.data_ptr()})
    thread = threading.Thread(target=snapshot.finish, name='writer')
    thread.start()
    thread.join()
    assert copied == [('MainThread', 2), ('writer', 1)]


def test_other_objects_are_copied_too(buffer: HostBuffer) -> None:
    content: dict[str, Any] = dict(
        numbers=[1, 2],
        nested=dict(deep=(dict(lr=0.1),)),
        counter=Counter(a=1),
        history=History(),
        ordered=OrderedDict(x=1),
        parameter=torch.nn.Parameter(torch.ones(2)),
        sparse=torch.eye(3).to_sparse(),
    )
    content['ordered']._metadata = {'': {'version': 1}}
    expected = copy.deepcopy(content)
    metadata = copy.deepcopy(content['ordered']._metadata)
    [frozen] = Snapshot(buffer).take([content])
    content['numbers'].append(3)
    content['nested']['deep'][0]['lr'] = 9
    content['counter']['a'] += 5
    content['history'].values[:] = 0
    content['history'].windows['loss'].append(3)
    content['ordered']['x'] = 2
    content['ordered']._metadata['']['version'] = 3
    with torch.no_grad():
        content['parameter'].zero_()
        content['sparse']._values().zero_()
    assert torch.equal(frozen['sparse'].to_dense(), torch.eye(3))
    assert type(frozen['parameter']) is torch.nn.Parameter
    assert frozen['ordered']._metadata == metadata
    for one in (frozen, expected):
        one.pop('sparse')
    assert same(frozen, expected)


def test_tied_weights_stay_tied_and_are_copied_once(buffer: HostBuffer) -> None:
    snapshot = Snapshot(buffer)
    weight = torch.randn(1000)
    step, best = snapshot.take([dict(a=weight, b=weight.detach()), dict(best=weight)])
    assert step['a'] is step['b'] is best['best']
    assert step['a'].data_ptr() != weight.data_ptr()
    assert buffer.requested < 2 * weight.nbytes
    # A view of another shape is another tensor.
    [views] = snapshot.take([[weight, weight[:10], weight.view(10, 100)]])
    assert [view.shape for view in views] == [(1000,), (10,), (10, 100)]


def test_memory_is_reserved_once_and_reused(
    buffer: HostBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = []
    original = HostBuffer.reserve

    def reserve(self: HostBuffer, size: int) -> None:
        reserved.append(size)
        original(self, size)

    monkeypatch.setattr(HostBuffer, 'reserve', reserve)
    snapshot = Snapshot(buffer)
    places = set()
    for _ in range(4):
        content = tree()
        [frozen] = snapshot.take([content])
        snapshot.finish()
        state = frozen['state_dict'].values()
        places.add(tuple(tensor.data_ptr() for tensor in state if tensor.numel()))
    assert len(reserved) == len(places) == 1
    content['more'] = torch.ones(5000)
    [frozen] = snapshot.take([content])
    snapshot.finish()
    assert len(reserved) == 2
    assert same(frozen['more'], content['more'])
    assert same(frozen['state_dict']['plain'], content['state_dict']['plain'])


def test_change_before_the_fence_raises(buffer: HostBuffer) -> None:
    snapshot = Snapshot(buffer)
    late, early = torch.ones(3), torch.ones(3)
    snapshot.take([[late, early]], {late.data_ptr()})
    early.add_(1)
    late.add_(1)
    with pytest.raises(TornError, match='changed by the forward or backward'):
        snapshot.finish()
    assert snapshot.await_copies() == 0.0  # there is nothing to wait for
    [frozen] = snapshot.take([[late]], {late.data_ptr()})
    snapshot.finish()
    assert torch.equal(frozen[0], late)


def test_fence_waits_for_the_copy(buffer: HostBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    go, done = threading.Event(), []

    class Copied(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            go.set()  # only when the fence waits here
            return super().wait(timeout)

    def finish() -> None:
        go.wait()
        snapshot.finish()
        done.append('copied')

    snapshot = Snapshot(buffer)
    snapshot._copied = Copied()
    snapshot._copied.set()
    late = torch.zeros(3)
    [frozen] = snapshot.take([[late]], {late.data_ptr()})
    thread = threading.Thread(target=finish)
    thread.start()
    waited = snapshot.await_copies()
    done.append('passed')
    late.fill_(1)
    go.set()
    thread.join()
    assert torch.equal(frozen[0], torch.zeros(3))
    assert waited > 0
    assert set(done) == {'copied', 'passed'}


def test_failed_copy_opens_the_fence(buffer: HostBuffer, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Snapshot(buffer)
    late = torch.ones(3)
    snapshot.take([[late]], {late.data_ptr()})

    def fails(pairs: list) -> None:
        raise MemoryError

    monkeypatch.setattr(module, '_copy', fails)
    with pytest.raises(MemoryError):
        snapshot.finish()
    assert snapshot.await_copies() == 0.0


class OnDevice(torch.Tensor):
    """A host tensor that claims to be on a device."""

    where = 'cuda:0'

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device(self.where)


def on(where: str, value: float) -> OnDevice:
    tensor = torch.full((3,), value).as_subclass(OnDevice)
    tensor.where = where
    return tensor


class FakeEvent:
    """An event whose copies are made when it is waited for, as late as a device may."""

    def __init__(self, calls: list, number: int, pairs: list) -> None:
        self.calls, self.number, self.pairs = calls, number, pairs

    def synchronize(self) -> None:
        self.calls.append(('wait', self.number, threading.current_thread().name))
        for target, source in self.pairs:
            target.copy_(source)


class FakeStream:
    """A side stream that records its calls."""

    calls: list[Any]

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls.append(('stream', str(device)))
        self._copies = 0

    def copy(self, pairs: list) -> FakeEvent:
        event = FakeEvent(self.calls, self._copies, pairs)
        self._copies += 1
        self.calls.append(('copy', event.number, [float(source[0]) for _, source in pairs]))
        return event

    def make_current_wait(self, event: FakeEvent) -> None:
        self.calls.append(('hold', event.number))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of the fake stream."""
    FakeStream.calls = []
    monkeypatch.setattr(module, 'SideStream', FakeStream)
    monkeypatch.setattr(module, 'Tensor', OnDevice)
    return FakeStream.calls


def addresses(*content: torch.Tensor) -> Collection[int]:
    return {tensor.data_ptr() for tensor in content}


def test_host_does_not_wait_for_a_device(buffer: HostBuffer, calls: list) -> None:
    snapshot = Snapshot(buffer)
    late, early = on('cuda:0', 1), on('cuda:0', 2)
    [frozen] = snapshot.take([[late, early]], addresses(late))
    # The device waits at once for tensors that may change at once, and at the fence for others.
    assert calls == [('stream', 'cuda:0'), ('copy', 0, [2.0]), ('hold', 0), ('copy', 1, [1.0])]
    assert snapshot.await_copies() == 0.0
    assert calls[4:] == [('hold', 1)]
    thread = threading.Thread(target=snapshot.finish, name='writer')
    thread.start()
    thread.join()
    assert calls[5:] == [('wait', 1, 'writer')]
    assert torch.equal(frozen[0], torch.full((3,), 1.0))
    # The next snapshot uses the same stream.
    snapshot.take([[late, early]], addresses(late))
    assert [step for step in calls if step[0] == 'stream'] == [('stream', 'cuda:0')]


def test_host_values_are_made_late_with_a_device_too(buffer: HostBuffer, calls: list) -> None:
    """`make` may wait for a copy from the device, and `take` must not."""
    made: list[str] = []

    def make() -> list:
        made.append(threading.current_thread().name)
        return [1, 2]

    snapshot = Snapshot(buffer)
    content = dict(weight=on('cuda:0', 1), history=Deferred(make, is_of_host=True), after=3)
    for _ in range(2):  # the first snapshot reserves the memory
        made.clear()
        [frozen] = snapshot.take([content])
        assert made == []
        thread = threading.Thread(target=snapshot.finish, name='writer')
        thread.start()
        thread.join()
        assert made == ['writer']
        assert list(frozen) == ['weight', 'history', 'after']
        assert frozen['history'] == [1, 2]


def test_early_copies_are_before_late_ones_on_one_stream(buffer: HostBuffer, calls: list) -> None:
    """So that the event of the late copies is enough for both."""
    snapshot = Snapshot(buffer)
    content = [on('cuda:0', 1), on('cuda:0', 2), on('cuda:0', 3)]
    snapshot.take([content], addresses(content[1]))
    assert [step[2] for step in calls if step[0] == 'copy'] == [[1.0, 3.0], [2.0]]


def test_host_tensors_are_copied_at_once_with_a_device(buffer: HostBuffer, calls: list) -> None:
    """As Adam's step counts: with a device, the fence does not make the host wait."""
    snapshot = Snapshot(buffer)
    weight, step = on('cuda:0', 1), on('cpu', 5)
    [frozen] = snapshot.take([[weight, step]], addresses(weight, step))
    snapshot.await_copies()
    step.add_(1)
    snapshot.finish()
    assert frozen[1].tolist() == [5.0] * 3


def test_device_without_asynchronous_copies_is_copied_at_once(
    buffer: HostBuffer, calls: list
) -> None:
    snapshot = Snapshot(buffer)
    weight = on('mps', 1)
    [frozen] = snapshot.take([[weight]], addresses(weight))
    weight.add_(1)
    assert frozen[0].tolist() == [1.0] * 3
    snapshot.finish()
    assert calls == []


def test_deferred_values_are_traversed_late(buffer: HostBuffer) -> None:
    """So that items added before the fence are part of the snapshot."""
    snapshot = Snapshot(buffer)
    for turn in range(2):
        state = {0: {'step': torch.tensor(1.0), 'avg': torch.ones(40)}}
        tied = torch.full((40,), 3.0)
        content = dict(
            a=tied, state=Deferred(lambda state=state: state), b=Deferred(lambda tied=tied: tied)
        )
        content['groups'] = [dict(lr=0.1)]
        [frozen] = snapshot.take([content], {torch.ones(1).data_ptr()})
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
        inside = buffer.offset(frozen['state'][0]['more'].data_ptr(), 20000) is not None
        assert inside == (turn > 0)  # the first snapshot reserved no memory for it


def test_deferred_values_are_copied_at_once_without_late_tensors(buffer: HostBuffer) -> None:
    """As where hooks may change the optimizer's state right after a save."""
    snapshot = Snapshot(buffer)
    state = dict(avg=torch.ones(40))
    [frozen] = snapshot.take([dict(state=Deferred(lambda: state))])
    state['avg'].zero_()
    snapshot.finish()
    assert same(frozen['state']['avg'], torch.ones(40))


def test_deferred_values_of_a_device_are_traversed_at_once(calls: list) -> None:
    """The training starts their copies, after the copies that the device waits for at once."""
    buffer = HostBuffer('mps')  # for any device; it is not accessed
    snapshot = Snapshot(buffer)
    content = dict(state=Deferred(lambda: {0: dict(x=on('cuda:0', 1))}), buffer=on('cuda:0', 2))
    [frozen] = snapshot.take([content], {torch.ones(1).data_ptr()})
    assert [step[2] for step in calls if step[0] == 'copy'] == [[2.0], [1.0]]
    assert torch.equal(frozen['buffer'], torch.zeros(3))  # not copied yet
    snapshot.finish()
    snapshot.await_copies()
    buffer.close()


@pytest.mark.parametrize('fenced', [False, True])
@pytest.mark.parametrize('changed', [False, True])
def test_change_before_the_fence_raises_with_a_device_too(
    buffer: HostBuffer, calls: list, changed: bool, fenced: bool
) -> None:
    """A change after the fence is correct: the device makes it wait for the copies."""
    snapshot = Snapshot(buffer)
    weight = on('cuda:0', 1)
    snapshot.take([[weight]], addresses(weight))
    if changed:
        weight.add_(1)
    if fenced:
        snapshot.await_copies()
        weight.add_(1)
    with pytest.raises(TornError) if changed else contextlib.nullcontext():
        snapshot.finish()
