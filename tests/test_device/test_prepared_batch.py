"""The prepared form is returned once, for the unchanged batch."""

from __future__ import annotations

import copy
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mmtempo.device.prepared_batch import PreparedBatch, take_prepared


def test_hooks_see_the_batch_of_the_loader() -> None:
    batch = dict(inputs=[1], data_samples=[2])
    prepared = PreparedBatch(batch, 'ready')
    assert prepared == batch
    assert prepared['inputs'] is batch['inputs']
    for twin in (copy.copy(prepared), copy.deepcopy(prepared), prepared.copy()):
        assert type(twin) is dict
        assert twin == batch
    assert type(pickle.loads(pickle.dumps(prepared))) is dict


def test_the_prepared_form_is_returned_once() -> None:
    prepared = PreparedBatch(dict(a=1), 'ready', training=True)
    assert take_prepared(prepared, True) == 'ready'
    assert take_prepared(prepared, True) is None
    assert take_prepared(dict(a=1), True) is None


def test_the_prepared_form_is_for_its_mode_only() -> None:
    prepared = PreparedBatch(dict(a=1), 'ready', training=False)
    assert prepared.take(True) is None
    assert prepared.take() is None
    assert prepared.take(False) == 'ready'


@pytest.mark.parametrize(
    'change',
    [
        lambda batch: batch.update(a=[0]),
        lambda batch: batch.update(b=1),
        lambda batch: batch.pop('a'),
        lambda batch: batch.clear(),
    ],
)
def test_a_changed_batch_loses_its_prepared_form(change: Callable[[dict], Any]) -> None:
    prepared = PreparedBatch(dict(a=[0], c=None), 'ready')
    change(prepared)
    assert prepared.take() is None


def test_the_step_can_free_the_prepared_form() -> None:
    """A model may free its input in the middle of a step, while the batch still exists."""
    prepared = PreparedBatch(dict(a=1), torch.ones(2))
    ready = weakref.ref(prepared._ready)
    prepared.take()
    assert ready() is None
