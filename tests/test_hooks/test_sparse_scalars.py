"""Values of the host's own that are worked out when somebody reads, beside those of the device."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from mmengine.logging import MessageHub

from mmtempo.core.nonfinite import NonFiniteWatch
from mmtempo.core.scalar_rows import ScalarRows
from mmtempo.hooks.sparse_scalars import SparseScalars


class Underway:
    """A copy that arrives when it is told to, or waited for."""

    arrived = False

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def values(self) -> list:
        return self._rows.tolist()


class Times:
    """An iteration takes as many seconds as its number."""

    def __init__(self) -> None:
        self.new: list[float] = []

    def since(self) -> dict[str, list]:
        new, self.new = self.new, []
        return dict(time=new) if new else {}


@pytest.fixture
def hub(request: pytest.FixtureRequest) -> MessageHub:
    return MessageHub.get_instance(request.node.name)


@pytest.fixture
def scalars(hub: MessageHub) -> SparseScalars:
    rows = ScalarRows(Underway)
    return SparseScalars(hub, NonFiniteWatch('warn', print), lambda key: 100, rows)


def iterate(scalars: SparseScalars, times: Times, number: int) -> None:
    scalars.note('loss', torch.tensor(float(number)))
    scalars.seal(number)
    times.new.append(float(number))


def test_a_line_has_its_own_iterations_alone(scalars: SparseScalars) -> None:
    """Also where it waits for the device, and somebody asks meanwhile for what came since."""
    times = Times()
    scalars.note_later(['time'], times.since)
    iterate(scalars, times, 1)
    window = scalars.send()
    iterate(scalars, times, 2)
    scalars.gather()
    assert not scalars.arrived(window)
    iterate(scalars, times, 3)
    assert scalars.arrived(window, wait=True)
    read: dict[str, Any] = {key: one.data[0].tolist() for key, one in window.histories.items()}
    assert read == dict(loss=[1.0], time=[1.0])


def test_whoever_reads_gets_all(scalars: SparseScalars, hub: MessageHub) -> None:
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


def test_whoever_notes_later_may_go(scalars: SparseScalars, hub: MessageHub) -> None:
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
