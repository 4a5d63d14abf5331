"""Values from the device and from sources that are called when histories are read."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub

from mmtempo.logging.nonfinite import NonFiniteWatch
from mmtempo.logging.scalar_buffer import ScalarBuffer
from mmtempo.logging.scalar_rows import ScalarRows


class Underway:
    """A copy that arrives on request, or when it is waited for."""

    arrived = False

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def values(self) -> list:
        return self._rows.tolist()


class Times:
    """A source of iteration times: iteration n takes n seconds."""

    def __init__(self) -> None:
        self.new: list[float] = []

    def since(self) -> dict[str, list]:
        new, self.new = self.new, []
        return dict(time=new) if new else {}


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> MessageHub:
    return MessageHub.get_instance(request.node.name)


@pytest.fixture
def scalars(hub: MessageHub) -> ScalarBuffer:
    rows = ScalarRows(Underway)
    return ScalarBuffer(hub, NonFiniteWatch('warn', print), lambda key: 100, rows)


def iterate(scalars: ScalarBuffer, times: Times, number: int) -> None:
    scalars.note('loss', torch.tensor(float(number)))
    scalars.seal(number)
    times.new.append(float(number))


def test_a_line_has_the_iterations_of_its_window_only(scalars: ScalarBuffer) -> None:
    """Also while the line waits for the device and a hook reads later values."""
    times = Times()
    scalars.note_later(['time'], times.since)
    iterate(scalars, times, 1)
    window = scalars.send()
    iterate(scalars, times, 2)
    scalars.gather()
    assert not scalars.deliver(window)
    iterate(scalars, times, 3)
    assert scalars.deliver(window, wait=True)
    read: dict[str, Any] = {key: one.data[0].tolist() for key, one in window.histories.items()}
    assert read == dict(loss=[1.0], time=[1.0])


def test_reading_a_history_waits_for_its_values(scalars: ScalarBuffer, hub: MessageHub) -> None:
    times = Times()
    scalars.note_later(['time'], times.since)
    for number in (1, 2, 3):
        iterate(scalars, times, number)
    assert hub.get_scalar('time').data[0].tolist() == [1.0, 2.0, 3.0]
    assert hub.get_scalar('time').current() == 3.0
    iterate(scalars, times, 4)
    scalars.close()
    iterate(scalars, times, 5)
    assert hub.get_scalar('time').data[0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_deleted_source_is_ignored(scalars: ScalarBuffer, hub: MessageHub) -> None:
    times = Times()
    scalars.note_later(['time'], times.since)
    iterate(scalars, times, 1)
    scalars.gather()
    gone = weakref.ref(times)
    del times
    gc.collect()
    assert gone() is None
    scalars.fetch()
    assert hub.get_scalar('time').data[0].tolist() == [1.0]


def test_copy_for_a_checkpoint_waits_when_it_is_read(
    scalars: ScalarBuffer, hub: MessageHub
) -> None:
    """The copy has the values of its moment, in any thread that reads it."""
    for number in (1, 2):
        iterate(scalars, Times(), number)
    window = scalars.send()
    iterate(scalars, Times(), 3)
    copied = copy.deepcopy(hub.log_scalars['loss'])
    assert not scalars.deliver(window)  # the copy has not waited
    iterate(scalars, Times(), 4)
    made: list[HistoryBuffer] = []
    thread = threading.Thread(target=lambda: made.append(copy.deepcopy(copied)))
    thread.start()
    thread.join()
    assert type(made[0]) is HistoryBuffer
    assert made[0].data[0].tolist() == [1.0, 2.0, 3.0]
    assert copied.totals[:2] == [3, 6.0]
    assert scalars.deliver(window, wait=True)
    assert window.histories['loss'].data[0].tolist() == [1.0, 2.0]
    assert hub.get_scalar('loss').data[0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_copy_can_be_continued(scalars: ScalarBuffer, hub: MessageHub) -> None:
    iterate(scalars, Times(), 1)
    copied = copy.deepcopy(hub.log_scalars['loss'])
    copied.update(5.0)
    assert copied.data[0].tolist() == [1.0, 5.0]
    assert hub.get_scalar('loss').data[0].tolist() == [1.0]


def test_copies_between_two_lines_do_not_mix_them(
    scalars: ScalarBuffer, hub: MessageHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies of a window and later ones arrive together."""
    iterate(scalars, Times(), 1)
    window = scalars.send()
    iterate(scalars, Times(), 2)
    answers = iter([False, True, True, True, True])
    monkeypatch.setattr(Underway, 'arrived', property(lambda copy: next(answers)))
    scalars.fetch(wait=False)
    assert scalars.deliver(window)
    assert window.histories['loss'].data[0].tolist() == [1.0]
