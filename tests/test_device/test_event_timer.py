"""Device time of the parts of an iteration, without synchronization."""

from __future__ import annotations

import pytest
import torch

from mmtempo.device.event_timer import MOST_DONE, EventTimer, TimingEvents
from tests.testing.timing import DEVICE, LateDevice


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    return LateDevice(monkeypatch)


def clock_of(every: int = 1, most: int = 64) -> EventTimer:
    clock = EventTimer.of(DEVICE, every, most)
    assert clock is not None
    return clock


def iterate(clock: EventTimer, device: LateDevice, number: int) -> None:
    device.work(1000)  # before `begin`: not counted
    clock.begin()
    device.work(10 + number)
    clock.mark('forward')
    device.work(20)
    clock.mark('backward')
    device.work(5)
    clock.mark('forward')
    device.work(1000)
    clock.end(number)


def expected(number: int) -> tuple[int, dict[str, float]]:
    return number, pytest.approx(dict(forward=0.015 + number / 1000, backward=0.02))


@pytest.mark.parametrize('has_seam', [True, False])
def test_seconds_are_summed_by_part(has_seam: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = LateDevice(monkeypatch, has_seam)
    clock = clock_of()
    iterate(clock, device, 3)
    assert clock.take() == []
    device.catch_up()
    assert clock.take() == [expected(3)]
    assert clock.take() == []


def test_late_iterations_are_read_in_order_when_complete(device: LateDevice) -> None:
    """An iteration is taken as soon as its last event is reached, and not before."""
    clock = clock_of()
    for number in range(4):
        iterate(clock, device, number)
    taken = []
    for _ in range(16):
        device.catch_up(1)
        taken.append(clock.take())
    assert [len(one) for one in taken] == [0, 0, 0, 1] * 4
    assert [one for some in taken for one in some] == [expected(number) for number in range(4)]


def test_events_of_a_later_stream_delay_their_iteration(device: LateDevice) -> None:
    """The last event is reached, an earlier one on another stream is not."""
    clock = clock_of()
    iterate(clock, device, 0)
    last = clock._pending[0].events[-1]
    last.number = 0.5
    device.catch_up(1)
    assert last.query()
    assert clock.take() == []
    device.catch_up(3)
    assert len(clock.take()) == 1


def test_events_are_reused(device: LateDevice) -> None:
    clock = clock_of()
    for number in range(100):
        iterate(clock, device, number)
        if number % 10 == 9:  # it lags up to ten iterations
            device.catch_up()
            assert len(clock.take()) == 10
    assert device.created == 40
    assert clock.skipped == 0


def test_memory_is_bounded_without_take(device: LateDevice) -> None:
    """Completed events are read a few at a time in each iteration."""
    clock = clock_of(most=5)
    for number in range(4):
        iterate(clock, device, number)
    created = device.created
    for number in range(4, MOST_DONE + 10):
        device.catch_up()
        before = len(clock._pending)
        iterate(clock, device, number)
        assert before - len(clock._pending) <= 1  # two are read, one is added
    assert device.created <= created + 4
    assert clock.skipped == 0
    device.catch_up()
    assert [number for number, _ in clock.take()] == list(range(10, MOST_DONE + 10))
    assert clock.take() == []


def test_iterations_are_skipped_while_too_many_are_pending(device: LateDevice) -> None:
    clock = clock_of(most=5)
    for number in range(8):
        iterate(clock, device, number)
    assert device.created == 20
    assert clock.skipped == 3
    device.catch_up()
    assert [number for number, _ in clock.take()] == [0, 1, 2, 3, 4]
    iterate(clock, device, 8)
    device.catch_up()
    assert clock.take() == [expected(8)]
    assert clock.skipped == 3
    assert device.created == 20


def test_interval_measures_the_first_and_each_nth_iteration(device: LateDevice) -> None:
    clock = clock_of(every=3)
    for number in range(7):
        iterate(clock, device, number)
    device.catch_up()
    assert clock.take() == [expected(number) for number in (0, 3, 6)]
    assert clock.skipped == 0
    assert device.recorded == 12


def test_an_iteration_without_end_returns_its_events(device: LateDevice) -> None:
    """A failed iteration is not measured, and its events are reused."""
    clock = clock_of()
    clock.begin()
    clock.mark('forward')
    iterate(clock, device, 1)
    device.catch_up()
    assert clock.take() == [expected(1)]
    assert device.created == 4


def test_marks_without_begin_are_ignored(device: LateDevice) -> None:
    clock = clock_of()
    clock.mark('forward')
    clock.end(0)
    clock.begin()
    clock.end(1)  # without a part
    device.catch_up()
    assert clock.take() == []
    assert device.created == 1


@pytest.mark.parametrize('kind', ['cpu', 'meta', 'mps'])
def test_devices_without_timing_events_have_no_timer(kind: str) -> None:
    assert EventTimer.of(torch.device(kind)) is None
    assert TimingEvents.of(torch.device(kind)) is None


def test_before_torch_2_6_only_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TimingEvents.of(torch.device('xpu')) is not None
    monkeypatch.delattr(torch, 'accelerator', raising=False)
    assert TimingEvents.of(torch.device('xpu')) is None
    assert TimingEvents.of(torch.device('cuda')) is not None
