"""Tensors that are checked or exempt, and flags that are read without an early wait."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmtempo.checkpoint import finite_weights
from mmtempo.checkpoint.finite_weights import JudgedWeights, NonFiniteWeights, bad_copies

NAN, INF = float('nan'), float('inf')


class Model(torch.nn.Module):
    """Module with a tensor of each kind; those named `odd` are not finite on purpose."""

    def __init__(self) -> None:
        super().__init__()
        for name in ('weight', 'frozen', 'odd_weight'):
            self.register_parameter(name, torch.nn.Parameter(torch.ones(3)))
        self.frozen.requires_grad_(False)
        self.odd_weight.data[1] = -INF
        self.register_buffer('mean', torch.ones(3))
        self.register_buffer('mask', torch.tensor([0.0, -INF]))
        self.register_buffer('odd_buffer', torch.tensor([0.0, NAN]))
        self.register_buffer('count', torch.tensor(3))
        self.register_buffer('none', torch.empty(0))

    def spoil(self, name: str, value: float) -> None:
        self.state_dict()[name][0] = value


@pytest.mark.parametrize(
    ('name', 'value', 'is_bad'),
    [
        ('weight', NAN, True),
        ('weight', INF, True),
        ('frozen', NAN, False),
        ('odd_weight', NAN, False),
        ('mean', NAN, True),
        ('mean', INF, False),
        ('mask', NAN, False),
        ('odd_buffer', INF, False),
    ],
)
def test_tensor_is_checked_on_device_and_as_copy(name: str, value: float, is_bad: bool) -> None:
    model = Model()
    judged = JudgedWeights(model)
    assert judged.look(model).bad() == []
    assert bad_copies(model.state_dict().items(), judged.rules(model)) == []
    model.spoil(name, value)
    expected = [name] if is_bad else []
    assert judged.look(model).bad() == expected
    assert bad_copies(model.state_dict().items(), judged.rules(model)) == expected


def test_mask_that_was_infinite_at_the_start_may_become_nan() -> None:
    """`EMAHook(update_buffers=True)` averages -inf and -inf."""
    model = torch.nn.Linear(2, 2)
    model.register_buffer('mask', torch.tensor([0.0, float('-inf')]))
    judged = JudgedWeights(model)
    model.mask.fill_(float('nan'))
    assert judged.look(model).bad() == []
    assert 'mask' not in judged.rules(model)
    assert 'weight' in judged.rules(model)


def test_parameter_is_checked_once_it_is_trained() -> None:
    model = Model()
    judged = JudgedWeights(model)
    model.frozen.requires_grad_(True)
    model.spoil('frozen', NAN)
    assert judged.look(model).bad() == ['frozen']


def test_lazy_parameter_is_checked_once_it_exists() -> None:
    model = torch.nn.LazyLinear(2)
    judged = JudgedWeights(model)
    model(torch.ones(1, 3))
    model.weight.data[0] = NAN
    assert judged.look(model).bad() == ['weight']


@pytest.mark.parametrize(
    'dtype', [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn]
)
def test_other_dtypes_are_checked(dtype: torch.dtype) -> None:
    copies = dict(good=torch.ones(3).to(dtype), bad=torch.tensor([1.0, NAN]).to(dtype))
    assert bad_copies(copies.items(), dict(good=False, bad=False)) == ['bad']


def test_overflow_of_the_sum_is_not_bad() -> None:
    largest = torch.full((4,), torch.finfo(torch.float32).max)
    opposite = torch.tensor([INF, -INF])
    copies = dict(large=largest, mask=opposite, weight=opposite)
    assert bad_copies(copies.items(), dict(large=False, mask=True, weight=False)) == ['weight']


def test_values_without_host_memory_are_ignored() -> None:
    copies: dict[str, Any] = dict(
        text='x',
        whole=torch.ones(2, dtype=torch.int64),
        elsewhere=torch.empty(2, device='meta'),
        sparse=torch.eye(2).to_sparse(),
        unknown=torch.tensor(NAN),
    )
    assert bad_copies(copies.items(), dict.fromkeys(set(copies) - {'unknown'}, False)) == []


def test_look_waits_only_when_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    class Copy:
        """Copy that has not arrived, and records when it is read."""

        arrived = False

        def __init__(self, flags: torch.Tensor) -> None:
            self._flags = flags

        def values(self) -> list:
            reads.append('read')
            return self._flags.tolist()

    model = Model()
    judged = JudgedWeights(model)
    monkeypatch.setattr(finite_weights, 'HostCopy', Copy)
    model.spoil('mean', NAN)
    look = judged.look(model)
    model.spoil('mean', 1.0)
    assert not look.arrived
    assert reads == []
    assert look.bad() == ['mean']
    assert reads == ['read']


def test_model_without_weights_is_finite() -> None:
    model = torch.nn.ReLU()
    look = JudgedWeights(model).look(model)
    assert look.arrived
    assert look.bad() == []


def test_error_names_the_first_and_counts_the_others() -> None:
    error = NonFiniteWeights(['a', 'b', 'c'], 3, ends_run=True)
    assert str(error) == 'nan or infinity in a and 2 more of the model'
    assert str(NonFiniteWeights(['a'], 3, True)) == 'nan or infinity in a of the model'
