"""Whether it compiles is known before it has to."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmtempo.models.compile_check import check_compile, why_not_compiled

CPU = torch.device('cpu')


def broken(graph: Any, inputs: Any) -> Any:
    raise OSError('no compiler found\nsecond line')


def test_a_backend_that_works() -> None:
    assert why_not_compiled(CPU, dict(backend='eager')) is None


def test_a_backend_that_does_not() -> None:
    reason = why_not_compiled(CPU, dict(backend=broken))
    assert reason is not None
    assert 'no compiler found' in reason
    assert '\n' not in reason


def test_an_unknown_backend() -> None:
    assert 'nowhere' in str(why_not_compiled(CPU, dict(backend='nowhere')))


@pytest.mark.parametrize(
    ('options', 'error', 'says'),
    [
        (True, TypeError, r"key: expected a dict as dict\(modules='auto'.*found True"),
        (dict(module=['a']), ValueError, "key has no 'module'; did you mean 'modules'?"),
        (dict(xyz=1), ValueError, "key has no 'xyz'. Expected some of modules, "),
        (dict(mode='fast'), ValueError, "key.mode must be one of default, .* found 'fast'"),
    ],
)
def test_wrong_options(options: Any, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        check_compile(options, 'key')


@pytest.mark.parametrize(
    'options', [None, {}, dict(modules=['a'], mode='max-autotune'), dict(dynamic=False)]
)
def test_right_options(options: Any) -> None:
    check_compile(options, 'key')
