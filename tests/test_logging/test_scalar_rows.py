"""Scalars are copied to the host in order and together, also if their tensors change."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.logging.scalar_rows import ScalarRows
from tests.testing.slow_copy import SlowCopy


@pytest.fixture
def slow() -> ScalarRows:
    SlowCopy.made = []
    return ScalarRows(SlowCopy)


def fill(rows: ScalarRows, iterations: range) -> None:
    for iteration in iterations:
        rows.note('loss', torch.tensor(float(iteration)))
        rows.note('plain', 0.5)
        rows.seal(iteration)


def taken(rows: ScalarRows, ticket: int, wait: bool) -> list:
    return [row for shipment in rows.take(ticket, wait) for row in shipment.values]


def test_rows_come_back_in_order() -> None:
    rows = ScalarRows()
    rows.note('a', torch.tensor(1.5), count=3)
    rows.note('b', torch.tensor([2.0], requires_grad=True))
    rows.note('n', 7)
    rows.seal(0)
    rows.note('b', torch.tensor(4.0))
    rows.note('b', torch.tensor(5.0))
    rows.seal(1)
    rows.seal(2)  # no values
    assert taken(rows, rows.send(), wait=False) == [
        (0, [('a', 1.5, 3), ('b', 2.0, 1), ('n', 7, 1)]),
        (1, [('b', 4.0, 1), ('b', 5.0, 1)]),
    ]
    assert len(rows) == 0
    assert not taken(rows, rows.send(), wait=True)


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
    ((_, found),) = taken(rows, rows.send(), wait=True)
    assert found == [(key, value.item(), 1) for key, value in values.items()]
    assert isinstance(found[1][1], int)


def test_later_changes_of_a_tensor_do_not_change_its_value() -> None:
    rows = ScalarRows()
    loss = torch.tensor(1.0)
    rows.note('loss', loss)
    rows.seal(0)
    loss.fill_(9.0)  # as a CUDA graph overwrites its outputs
    rows.note('loss', loss)
    rows.seal(1)
    assert [values[0][1] for _, values in taken(rows, rows.send(), wait=True)] == [1.0, 9.0]


def test_one_copy_a_window_without_earlier_synchronization(slow: ScalarRows) -> None:
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
    assert not taken(slow, second, wait=False)
    SlowCopy.made[1].arrived = True  # out of order: the first one is still missing
    assert not taken(slow, second, wait=False)
    SlowCopy.made[0].arrived = True
    assert [iteration for iteration, _ in taken(slow, first, wait=False)] == [0, 1]
    assert slow.has_taken(first)
    assert not slow.has_taken(second)
    late = taken(slow, second, wait=False)
    assert [iteration for iteration, _ in late] == [2, 3]
    assert [values for _, values in late] == [
        [('loss', 2.0, 1), ('plain', 0.5, 1)],
        [('loss', 3.0, 1), ('plain', 0.5, 1)],
    ]
    assert not any(copy.waited for copy in SlowCopy.made)


def test_take_with_wait_returns_all_rows(slow: ScalarRows) -> None:
    fill(slow, range(3))
    assert len(taken(slow, slow.send(), wait=True)) == 3
    assert SlowCopy.made[0].waited


def test_sending_nothing_starts_no_copy(slow: ScalarRows) -> None:
    assert slow.send() == slow.send() == 0
    fill(slow, range(1))
    assert slow.send() == slow.send() == 1
    assert len(SlowCopy.made) == 1


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (torch.zeros(2), r'^loss: .* one number, found Tensor of shape \(2,\)$'),
        (np.zeros((3, 1)), 'found ndarray of shape'),
        ('0.5', 'found str$'),
        (None, 'found NoneType$'),
    ],
)
def test_values_other_than_numbers_are_refused(value: object, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        ScalarRows().note('loss', value)


def test_numbers_of_numpy_become_python_numbers() -> None:
    rows = ScalarRows()
    for value in (np.float32(0.1), np.array([2]), np.int64(3)):
        rows.note('x', value)
    rows.seal(0)
    ((_, values),) = taken(rows, rows.send(), wait=True)
    assert [(value, type(value)) for _, value, _ in values] == [
        (float(np.float32(0.1)), float),
        (2, int),
        (3, int),
    ]
