"""The device's time of the parts of an iteration; nobody waits for it."""

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
    device.work(1000)  # what is nobody's
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
def test_parts_of_an_iteration(has_seam: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = LateDevice(monkeypatch, has_seam)
    clock = clock_of()
    iterate(clock, device, 3)
    assert clock.take() == []
    device.catch_up()
    assert clock.take() == [expected(3)]
    assert clock.take() == []


def test_a_device_that_is_late(device: LateDevice) -> None:
    """Iterations come in order, each as soon as its last event was reached, and not before."""
    clock = clock_of()
    for number in range(4):
        iterate(clock, device, number)
    taken = []
    for _ in range(16):
        device.catch_up(1)
        taken.append(clock.take())
    assert [len(one) for one in taken] == [0, 0, 0, 1] * 4
    assert [one for some in taken for one in some] == [expected(number) for number in range(4)]


def test_an_event_on_a_stream_that_is_later(device: LateDevice) -> None:
    """The last event was reached, an earlier one was not."""
    clock = clock_of()
    iterate(clock, device, 0)
    last = clock._flying[0].events[-1]
    last.number = 0.5
    device.catch_up(1)
    assert last.query()
    assert clock.take() == []
    device.catch_up(3)
    assert len(clock.take()) == 1


def test_events_are_used_again(device: LateDevice) -> None:
    clock = clock_of()
    for number in range(100):
        iterate(clock, device, number)
        if number % 10 == 9:  # it is up to ten iterations behind
            device.catch_up()
            assert len(clock.take()) == 10
    assert device.created == 40
    assert clock.skipped == 0


def test_nobody_has_to_take_often(device: LateDevice) -> None:
    """It is read out meanwhile, a little in each iteration, and memory is fixed."""
    clock = clock_of(most=5)
    for number in range(4):
        iterate(clock, device, number)
    created = device.created
    for number in range(4, MOST_DONE + 10):
        device.catch_up()
        before = len(clock._flying)
        iterate(clock, device, number)
        assert before - len(clock._flying) <= 1  # two are read, one has come
    assert device.created <= created + 4
    assert clock.skipped == 0
    device.catch_up()
    assert [number for number, _ in clock.take()] == list(range(10, MOST_DONE + 10))
    assert clock.take() == []


def test_a_device_that_is_too_late_is_not_measured(device: LateDevice) -> None:
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


def test_some_iterations(device: LateDevice) -> None:
    clock = clock_of(every=3)
    for number in range(7):
        iterate(clock, device, number)
    device.catch_up()
    assert clock.take() == [expected(number) for number in (0, 3, 6)]
    assert clock.skipped == 0
    assert device.recorded == 12


def test_an_iteration_that_was_not_ended(device: LateDevice) -> None:
    """As where it has failed: it is not measured, and its events serve the next."""
    clock = clock_of()
    clock.begin()
    clock.mark('forward')
    iterate(clock, device, 1)
    device.catch_up()
    assert clock.take() == [expected(1)]
    assert device.created == 4


def test_marks_that_nobody_has_begun(device: LateDevice) -> None:
    clock = clock_of()
    clock.mark('forward')
    clock.end(0)
    clock.begin()
    clock.end(1)  # without a part
    device.catch_up()
    assert clock.take() == []
    assert device.created == 1


@pytest.mark.parametrize('kind', ['cpu', 'meta', 'mps'])
def test_where_time_cannot_be_told_without_waiting(kind: str) -> None:
    assert EventTimer.of(torch.device(kind)) is None
    assert TimingEvents.of(torch.device(kind)) is None


def test_before_torch_2_6_only_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert TimingEvents.of(torch.device('xpu')) is not None
    monkeypatch.delattr(torch, 'accelerator', raising=False)
    assert TimingEvents.of(torch.device('xpu')) is None
    assert TimingEvents.of(torch.device('cuda')) is not None
