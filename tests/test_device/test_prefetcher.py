"""Batches are staged one step ahead; nothing is read or overwritten too early."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmtempo.device.prefetcher import DevicePrefetcher
from mmtempo.device.streams import SideStream

DEVICE = torch.device('cuda:1')
GARBAGE = 'garbage'


class Stream:
    """A queue of operations, executed when the device reaches them."""

    def __init__(self, device: FakeDevice, name: str) -> None:
        self.device, self.name = device, name
        self.todo: deque[Callable[[], bool]] = deque()
        self.given = self.executed = 0

    def give(self, work: Callable[[], None]) -> None:
        self._append(lambda: work() or True)  # type: ignore[func-returns-value]

    def _append(self, operation: Callable[[], bool]) -> None:
        self.given += 1
        self.todo.append(operation)

    def step(self) -> bool:
        """Execute one operation; return whether one could start."""
        if not self.todo or not self.todo[0]():
            return False
        self.todo.popleft()
        self.executed += 1
        return True

    def wait_stream(self, other: Stream) -> None:
        self._wait_for(other, other.given)

    def wait_event(self, event: Event) -> None:
        assert event.stream is not None, 'an event that was never recorded lets everything pass'
        self._wait_for(event.stream, event.number)

    def _wait_for(self, other: Stream, number: int) -> None:
        self._append(lambda: other.executed >= number)


class Event:
    """A position in a stream; may be recorded again."""

    stream: Stream | None = None
    number = 0

    def __init__(self, device: FakeDevice) -> None:
        self.device = device

    def record(self, stream: Stream) -> None:
        self.stream, self.number = stream, stream.given

    def query(self) -> bool:
        return self.stream is None or self.stream.executed >= self.number

    def synchronize(self) -> None:
        self.device.host_waits += 1


class Block:
    """Memory of the device; a freed tensor returns it to the stream it was allocated on."""

    content: Any = None


class Tensor:
    def __init__(self, device: FakeDevice, stream: Stream) -> None:
        self.free = device.free[stream]
        self.block = self.free.pop() if self.free else device.new_block()

    def __del__(self) -> None:
        self.free.append(self.block)


class HostBatch:
    """Memory of the loader; without references the next batch is written there."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.memory: list[Any] = [number]

    def __del__(self) -> None:
        self.memory[0] = GARBAGE


class FakeDevice:
    """Executes late, in another order; compares what it reads with what it should read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computing, self.side = Stream(self, 'computing'), Stream(self, 'side')
        self.current = self.computing
        self.free: dict[Stream, list[Block]] = defaultdict(list)
        self.blocks = self.events = self.host_waits = 0
        self.seen: list[tuple[int, Any]] = []
        self.copied: list[Any] = []
        self.log: list[tuple[str, int]] = []
        seam = SimpleNamespace(
            current_stream=lambda device: self.current,
            set_stream=lambda stream: setattr(self, 'current', stream),
            is_available=lambda: True,
            current_device_index=lambda: 0,
            set_device_index=lambda index: None,
        )
        monkeypatch.setattr(torch, 'accelerator', seam, raising=False)
        monkeypatch.setattr(torch, 'Stream', lambda device: self.side)
        monkeypatch.setattr(torch, 'Event', self.new_event)

    def new_event(self, device: torch.device) -> Event:
        self.events += 1
        return Event(self)

    def new_block(self) -> Block:
        self.blocks += 1
        return Block()

    def stage(self, batch: HostBatch) -> Tensor:
        """Copy, then normalize into another tensor."""
        assert self.current is self.side
        copied, memory = Tensor(self, self.current), batch.memory
        source, target = copied.block, Tensor(self, self.current)
        self.log.append(('stage', batch.number))

        def copy(block: Block = source) -> None:
            block.content = memory[0]

        def normalise(block: Block = target.block) -> None:
            block.content = source.content
            self.copied.append(block.content)

        self.current.give(copy)
        self.current.give(normalise)
        return target

    def train(self, tensor: Tensor, number: int) -> None:
        """Run a step that reads the batch twice."""
        assert self.current is self.computing
        block = tensor.block
        self.log.append(('step', number))
        for _ in range(2):
            self.current.give(lambda: self.seen.append((number, block.content)))

    def run(self, steps: int | None, choose: Callable[[], bool]) -> None:
        """Execute operations; `choose` decides whether the side stream goes first."""
        while steps is None or steps > 0:
            first, second = self.computing, self.side
            if choose():
                first, second = second, first
            if not first.step() and not second.step():
                break
            steps = None if steps is None else steps - 1
        if steps is None:
            assert not self.computing.todo
            assert not self.side.todo


class Source:
    """A source of batches, some of which are late."""

    def __init__(self, batches: Iterator[Any], ready: Callable[[], bool] = lambda: True) -> None:
        self.ready, self.taken = ready, 0
        self._batches = batches

    def __next__(self) -> Any:
        batch = next(self._batches)
        self.taken += 1
        return batch


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch)


def train(
    device: FakeDevice,
    side: SideStream,
    count: int,
    ready: Callable[[], bool] = lambda: True,
    between: Callable[[], None] = lambda: None,
) -> DevicePrefetcher:
    """Run steps that drop the batch in their middle."""
    source = Source(map(HostBatch, range(count)), ready)
    prefetcher = DevicePrefetcher(source, device.stage, side)
    for number in range(count):
        tensor = next(prefetcher)
        between()
        device.train(tensor, number)
        del tensor
        between()
    with pytest.raises(StopIteration):
        next(prefetcher)
    return prefetcher


def copies_late() -> bool:
    return False


def steps_late() -> bool:
    return True


@pytest.mark.parametrize('is_ready', [True, False])
@pytest.mark.parametrize('choose', [copies_late, steps_late])
def test_each_order_of_streams_reads_the_right_data(
    device: FakeDevice, choose: Callable[[], bool], is_ready: bool
) -> None:
    side = SideStream(DEVICE)
    for _ in range(2):  # two epochs
        train(device, side, 6, lambda: is_ready)
    device.run(None, choose)
    assert device.seen == [(n, n) for _ in range(2) for n in range(6) for _ in range(2)]
    assert device.host_waits == 0


@pytest.mark.parametrize('seed', range(60))
def test_random_orders_of_streams_read_the_right_data(device: FakeDevice, seed: int) -> None:
    rng = random.Random(seed)
    prefers_side, pace = rng.random(), rng.choice([2, 4, 8])
    side = SideStream(DEVICE)

    def choose() -> bool:
        return rng.random() < prefers_side

    for _ in range(2):
        train(
            device,
            side,
            12,
            lambda: rng.random() < 0.7,
            lambda: device.run(rng.randrange(pace), choose),
        )
    device.run(None, choose)
    assert device.seen == [(n, n) for _ in range(2) for n in range(12) for _ in range(2)]
    assert device.host_waits == 0


def test_a_copy_overlaps_with_the_step_before_it(device: FakeDevice) -> None:
    """It is launched first and waits for the earlier steps only."""
    source = Source(map(HostBatch, range(4)))
    prefetcher = DevicePrefetcher(source, device.stage, SideStream(DEVICE))
    for number in range(3):
        tensor = next(prefetcher)
        assert source.taken == number + 2
        device.train(tensor, number)
    stages = [('stage', n) for n in range(4)]
    assert device.log == [stages[0], *(x for n in range(3) for x in (stages[n + 1], ('step', n)))]
    for number in range(3):
        while len(device.seen) <= 2 * number:  # until this step has begun
            while device.side.step():
                pass
            device.computing.step()
        assert device.copied == list(range(number + 2))


def test_a_step_does_not_wait_for_the_overlapping_copy(device: FakeDevice) -> None:
    prefetcher = DevicePrefetcher(
        Source(map(HostBatch, range(9))), device.stage, SideStream(DEVICE)
    )
    for number in range(8):
        device.train(next(prefetcher), number)
        while device.computing.step() or (number == 0 and device.side.step()):
            pass
        assert len(device.seen) == 2 * number + 2
        device.run(None, steps_late)


def test_a_batch_is_returned_before_the_next_one_is_available(
    device: FakeDevice,
) -> None:
    source = Source(map(HostBatch, range(3)), lambda: False)
    prefetcher = DevicePrefetcher(source, device.stage, SideStream(DEVICE))
    for number in range(3):
        next(prefetcher)
        assert source.taken == number + 1


def test_memory_and_events_are_reused(device: FakeDevice) -> None:
    """Their number does not grow with the batches, on a fast or a late device."""
    side = SideStream(DEVICE)
    train(device, side, 50, between=lambda: device.run(None, steps_late))
    assert device.events <= 2
    assert device.blocks <= 4
    train(device, side, 50)
    assert device.blocks <= 4


def test_host_batches_are_released_once_copied(device: FakeDevice) -> None:
    side, hosts = SideStream(DEVICE), []

    def make(number: int) -> HostBatch:
        batch = HostBatch(number)
        hosts.append(batch.memory)
        return batch

    prefetcher = DevicePrefetcher(Source(map(make, range(4))), device.stage, side)
    for _ in range(4):
        next(prefetcher)
    side.release()
    assert [memory[0] for memory in hosts] == [0, 1, 2, 3]
    device.run(None, copies_late)
    side.release()
    assert [memory[0] for memory in hosts] == [GARBAGE] * 4


class LoaderError(Exception):
    pass


@pytest.mark.parametrize('is_ready', [True, False])
def test_an_error_of_the_source_is_raised_once_at_its_batch(
    device: FakeDevice, is_ready: bool
) -> None:
    def batches() -> Iterator[HostBatch]:
        yield HostBatch(0)
        raise LoaderError

    source = Source(batches(), lambda: is_ready)
    prefetcher = DevicePrefetcher(source, device.stage, SideStream(DEVICE))
    next(prefetcher)
    with pytest.raises(LoaderError):
        next(prefetcher)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(prefetcher)


def test_an_error_in_staging_is_raised_once_at_its_batch(device: FakeDevice) -> None:
    """Copies that it started are still in progress."""

    def stage(batch: HostBatch) -> Tensor:
        tensor = device.stage(batch)
        if batch.number == 1:
            raise ValueError('differ in shape')
        return tensor

    side, memory = SideStream(DEVICE), []

    def make(number: int) -> HostBatch:
        batch = HostBatch(number)
        memory.append(batch.memory)
        return batch

    prefetcher = DevicePrefetcher(Source(map(make, range(3))), stage, side)
    device.train(next(prefetcher), 0)
    assert device.current is device.computing
    with pytest.raises(ValueError, match='differ in shape'):
        next(prefetcher)
    assert memory[1] == [1]
    device.run(None, copies_late)
    side.release()
    assert device.seen == [(0, 0)] * 2
    assert memory[1] == [GARBAGE]


def test_the_end_of_the_source_ends_the_batches(device: FakeDevice) -> None:
    source = Source(map(HostBatch, range(3)))
    prefetcher = DevicePrefetcher(source, device.stage, SideStream(DEVICE))
    assert len(list(prefetcher)) == 3
    assert list(prefetcher) == []


def test_stop_iteration_in_staging_does_not_end_the_batches(device: FakeDevice) -> None:
    def stage(batch: HostBatch) -> Tensor:
        if batch.number == 1:
            raise StopIteration
        return device.stage(batch)

    prefetcher = DevicePrefetcher(Source(map(HostBatch, range(3))), stage, SideStream(DEVICE))
    with pytest.raises(RuntimeError, match='staging a batch raised StopIteration'):
        list(prefetcher)
