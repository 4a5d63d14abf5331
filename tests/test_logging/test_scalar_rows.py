"""Scalars come off the device in order, in one copy, whatever became of their tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.logging.scalar_rows import ScalarRows


class SlowCopy:
    """Arrives when it is told to, and counts."""

    made: list[SlowCopy] = []

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.arrived, self.waited = tensor.clone(), False, False
        self.made.append(self)

    def values(self) -> list:
        self.waited = not self.arrived
        return self.tensor.tolist()


@pytest.fixture
def slow() -> ScalarRows:
    SlowCopy.made = []
    return ScalarRows(SlowCopy)


def fill(rows: ScalarRows, iterations: range) -> None:
    for iteration in iterations:
        rows.note('loss', torch.tensor(float(iteration)))
        rows.note('plain', 0.5)
        rows.seal(iteration)


def test_rows_come_back_in_order() -> None:
    rows = ScalarRows()
    rows.note('a', torch.tensor(1.5), count=3)
    rows.note('b', torch.tensor([2.0], requires_grad=True))
    rows.note('n', 7)
    rows.seal(0)
    rows.note('b', torch.tensor(4.0))
    rows.note('b', torch.tensor(5.0))
    rows.seal(1)
    rows.seal(2)  # nothing was noted
    taken = list(rows.take(rows.send(), wait=False))
    assert taken == [
        (0, [('a', 1.5, 3), ('b', 2.0, 1), ('n', 7, 1)]),
        (1, [('b', 4.0, 1), ('b', 5.0, 1)]),
    ]
    assert len(rows) == 0
    assert not list(rows.take(rows.send(), wait=True))


def test_each_dtype_keeps_its_values() -> None:
    rows = ScalarRows()
    values = dict(
        half=torch.tensor(0.1, dtype=torch.bfloat16),
        large=torch.tensor(2**40 + 1),
        exact=torch.tensor(0.1, dtype=torch.float64),
        flag=torch.tensor(True),
    )
    for key, value in values.items():
        rows.note(key, value)
    rows.seal(0)
    ((_, found),) = rows.take(rows.send(), wait=True)
    assert found == [(key, value.item(), 1) for key, value in values.items()]
    assert isinstance(found[1][1], int)


def test_what_happens_to_a_tensor_afterwards_does_not_matter() -> None:
    rows = ScalarRows()
    loss = torch.tensor(1.0)
    rows.note('loss', loss)
    rows.seal(0)
    loss.fill_(9.0)  # as a captured graph does with its outputs
    rows.note('loss', loss)
    rows.seal(1)
    assert [values[0][1] for _, values in rows.take(rows.send(), wait=True)] == [1.0, 9.0]


def test_one_copy_a_window_and_no_wait_before_it(slow: ScalarRows) -> None:
    with SyncCensus() as census:
        fill(slow, range(50))
        assert not SlowCopy.made
        slow.send()
    assert len(SlowCopy.made) == 1
    assert len(SlowCopy.made[0].tensor) == 50
    assert census.waits == []


def test_taking_without_waiting_takes_what_has_arrived(slow: ScalarRows) -> None:
    fill(slow, range(2))
    first = slow.send()
    fill(slow, range(2, 4))
    second = slow.send()
    assert not list(slow.take(second, wait=False))
    SlowCopy.made[1].arrived = True  # out of order: the first one still keeps it back
    assert not list(slow.take(second, wait=False))
    SlowCopy.made[0].arrived = True
    assert [iteration for iteration, _ in slow.take(first, wait=False)] == [0, 1]
    assert slow.has_taken(first)
    assert not slow.has_taken(second)
    late = list(slow.take(second, wait=False))
    assert [iteration for iteration, _ in late] == [2, 3]
    assert [values for _, values in late] == [
        [('loss', 2.0, 1), ('plain', 0.5, 1)],
        [('loss', 3.0, 1), ('plain', 0.5, 1)],
    ]
    assert not any(copy.waited for copy in SlowCopy.made)


def test_waiting_takes_all(slow: ScalarRows) -> None:
    fill(slow, range(3))
    assert len(list(slow.take(slow.send(), wait=True))) == 3
    assert SlowCopy.made[0].waited


def test_sending_nothing_is_no_copy(slow: ScalarRows) -> None:
    assert slow.send() == slow.send() == 0
    fill(slow, range(1))
    assert slow.send() == slow.send() == 1
    assert len(SlowCopy.made) == 1


@pytest.mark.parametrize(
    ('value', 'said'),
    [
        (torch.zeros(2), r'loss is Tensor of shape \(2,\)'),
        (np.zeros((3, 1)), r'loss is ndarray of shape \(3, 1\)'),
        ('0.5', 'loss is str, but'),
        (None, 'loss is NoneType, but'),
    ],
)
def test_what_is_no_number_is_refused(value: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ScalarRows().note('loss', value)


def test_numbers_of_numpy_become_pythons_own() -> None:
    rows = ScalarRows()
    for value in (np.float32(0.1), np.array([2]), np.int64(3)):
        rows.note('x', value)
    rows.seal(0)
    ((_, values),) = rows.take(rows.send(), wait=True)
    assert [(value, type(value)) for _, value, _ in values] == [
        (float(np.float32(0.1)), float),
        (2, int),
        (3, int),
    ]
