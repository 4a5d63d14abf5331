"""Forward profiles by the clock of a device that is late."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmtempo.device.event_timer import TimingEvents
from mmtempo.monitor.forward_profile import MOST_PENDING, ForwardProfile
from tests.testing.profiled_models import Model, Segmentor, profile_of, train
from tests.testing.timing import DEVICE, LateDevice


class OnDevice:
    """Clock of a host that only submits work to the device."""

    def __init__(self, device: LateDevice) -> None:
        self.device = device

    def __call__(self) -> int:
        return 0

    @property
    def now(self) -> float:
        return self.device.given

    @now.setter
    def now(self, value: float) -> None:
        self.device.given = value


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    return LateDevice(monkeypatch)


def device_times(profile: ForwardProfile) -> dict[str, Any]:
    return {
        one.name: one.device_seconds and pytest.approx(one.device_seconds * 1000)
        for one in profile.result()
    }


def test_device_times(device: LateDevice) -> None:
    model = Segmentor(OnDevice(device))
    profile = profile_of(model, 'auto', events=TimingEvents.of(DEVICE))
    train(model, profile, 3)
    assert device_times(profile) == {'backbone': None, 'heads.0': None, 'heads.1': None}
    device.catch_up()
    assert device_times(profile) == {'backbone': 1000, 'heads.0': 20, 'heads.1': 20}
    times = profile.result()
    whole = 1000 + 7 + 2 * (100 + 20 + 20 + 100)
    assert [one.share for one in times] == pytest.approx([1000 / whole, 20 / whole, 20 / whole])
    assert [one.seconds for one in times] == [0, 0, 0]
    rest = profile.rest()
    assert rest.device_seconds == pytest.approx((7 + 2 * (100 + 20 + 100)) / 1000)
    assert rest.share + sum(one.share for one in times) == pytest.approx(1)
    assert rest.seconds == 0


def test_rest_of_concurrent_modules_is_not_negative(
    device: LateDevice,
) -> None:
    class Streams(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.backbone(x)
            self.clock.now -= 3  # the next module started at the same time
            return self.neck(x)

    model = Streams(OnDevice(device))
    profile = profile_of(model, events=TimingEvents.of(DEVICE))
    train(model, profile)
    device.catch_up()
    assert device_times(profile) == dict(backbone=3, neck=2)
    assert profile.rest()[-2:] == (0, 0)


def test_late_device_is_read_later(device: LateDevice) -> None:
    """Events are read when reached; with too many pending, iterations are not recorded."""
    model = Model(OnDevice(device))
    profile = profile_of(model, events=TimingEvents.of(DEVICE))
    each = 2 * 4
    train(model, profile, MOST_PENDING + 3)
    assert device.recorded == MOST_PENDING * each
    device.catch_up(each + 1)
    assert device_times(profile) == dict(backbone=3, neck=2, head=1)
    device.catch_up()
    train(model, profile)  # began while too many iterations were pending
    assert device.recorded == MOST_PENDING * each
    train(model, profile)
    assert device.recorded == (MOST_PENDING + 1) * each
    assert device.created == MOST_PENDING * each
    profile.close()
    device.catch_up()
    assert device_times(profile) == dict(backbone=3, neck=2, head=1)
    assert profile.iterations == MOST_PENDING + 5


def test_events_of_failed_passes_are_reused(device: LateDevice) -> None:
    model = Model(OnDevice(device))
    profile = profile_of(model, events=TimingEvents.of(DEVICE))

    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    handle = model.neck.register_forward_pre_hook(interrupt)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1))
        device.catch_up()
        profile.end_iteration()
    handle.remove()
    train(model, profile)
    device.catch_up()
    profile.end_iteration()
    assert device.created == 8
    assert device_times(profile)['head'] == 1
