"""Figures keep three digits, and change their unit before they need more."""

from __future__ import annotations

import pytest

from mmtempo.core.durations import duration, ordinal, percent


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [
        (0.0, '0.00 ms'),
        (0.00042, '0.42 ms'),
        (0.0873, '87.3 ms'),
        (0.9994, '999 ms'),
        (0.9996, '1.00 s'),
        (9.996, '10.0 s'),
        (99.94, '99.9 s'),
        (99.96, '1 min 40 s'),
        (724, '12 min 04 s'),
        (3599.7, '1 h 00 min'),
        (12060, '3 h 21 min'),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_percent() -> None:
    assert [percent(share) for share in (0.004, 0.0994, 0.31, 1)] == [
        '0.4 %',
        '9.9 %',
        '31 %',
        '100 %',
    ]


def test_ordinal() -> None:
    numbers = [1, 2, 3, 4, 11, 12, 13, 21, 112, 123]
    assert [ordinal(number) for number in numbers] == [
        *('1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '112th', '123rd')
    ]
