"""Checks of config values."""

import math
from typing import Any

import pytest

from mmtempo.utils.checks import is_number, is_number_from, is_whole


@pytest.mark.parametrize(
    ('value', 'expected'), [(1, True), (7, True), (0, False), (True, False), (1.0, False)]
)
def test_whole_numbers_exclude_bools_and_floats(value: Any, expected: bool) -> None:
    assert is_whole(value) is expected
    assert is_whole(0, least=0)
    assert not is_whole(None)


@pytest.mark.parametrize('value', [True, '1', None, math.nan, math.inf, -math.inf])
def test_what_is_not_a_finite_number_is_refused(value: Any) -> None:
    assert not is_number(value)
    assert not is_number_from(value, 0)


def test_limits_are_exclusive_above_and_inclusive_from() -> None:
    assert (is_number(0.5, above=0), is_number(0, above=0)) == (True, False)
    assert (is_number_from(0, 0), is_number_from(-0.1, 0)) == (True, False)
