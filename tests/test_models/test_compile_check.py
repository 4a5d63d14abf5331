"""Bad options and a compiler that does not work are found before the first iteration."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmtempo.models.compile_check import check_compile, why_not_compiled

CPU = torch.device('cpu')


def broken(graph: Any, inputs: Any) -> Any:
    raise OSError('no compiler found\nsecond line')


def test_working_backend_gives_no_reason() -> None:
    assert why_not_compiled(CPU, dict(backend='eager')) is None


def test_failing_backend_gives_its_reason_in_one_line() -> None:
    reason = why_not_compiled(CPU, dict(backend=broken))
    assert reason is not None
    assert 'no compiler found' in reason
    assert '\n' not in reason


def test_unknown_backend_is_named() -> None:
    assert 'nowhere' in str(why_not_compiled(CPU, dict(backend='nowhere')))


@pytest.mark.parametrize(
    ('options', 'error', 'message'),
    [
        (True, TypeError, r"key: expected a dict as dict\(modules='auto'.*found True"),
        (dict(module=['a']), ValueError, "key: .* found 'module'; did you mean modules?"),
        (dict(xyz=1), ValueError, "key: expected keys modules, .*, found 'xyz'$"),
        (dict(mode='fast'), ValueError, "key.mode must be one of default, .* found 'fast'"),
    ],
)
def test_bad_options_are_refused(options: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        check_compile(options, 'key')


@pytest.mark.parametrize(
    'options', [None, {}, dict(modules=['a'], mode='max-autotune'), dict(dynamic=False)]
)
def test_good_options_are_accepted(options: Any) -> None:
    check_compile(options, 'key')
