"""Plain tensors are those that their elements describe completely."""

from __future__ import annotations

import warnings

import pytest
import torch

from mmtempo.utils.tensors import is_plain

COMPLEX = torch.ones(2, dtype=torch.complex64)


@pytest.mark.parametrize(
    'value',
    [torch.ones(3), torch.ones(0, 2), torch.ones(4, 4)[:, ::2], torch.tensor(1), COMPLEX],
    ids=['dense', 'empty', 'gaps', 'scalar', 'complex'],
)
def test_elements_on_the_host_are_plain(value: torch.Tensor) -> None:
    assert is_plain(value)


@pytest.mark.parametrize(
    'value',
    [
        torch.ones(3, requires_grad=True),
        torch.nn.Parameter(torch.ones(3), requires_grad=False),
        torch.ones(3, device='meta'),
        torch.eye(3).to_sparse(),
        COMPLEX.conj(),
        COMPLEX.conj().imag,
        [1.0],
        None,
    ],
    ids=['gradient', 'subclass', 'meta', 'sparse', 'conj', 'neg', 'list', 'none'],
)
def test_other_values_are_not_plain(value: object) -> None:
    assert not is_plain(value)


def test_quantized_tensors_are_not_plain() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # deprecated in newer versions of torch
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    assert not is_plain(quantized)
