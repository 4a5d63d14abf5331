"""Numbers have three significant digits and a unit that suits them."""

from __future__ import annotations

import pytest

from mmtempo.utils.units import (
    counted,
    digits,
    duration,
    ordinal,
    percent,
    size,
    size_unit,
    time_unit,
)


@pytest.mark.parametrize(
    ('seconds', 'text'),
    [
        (0.0, '0 s'),
        (4.2e-6, '4.20 us'),
        (0.00042, '420 us'),
        (0.0009996, '1.00 ms'),
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
def test_durations_change_their_unit(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_column_has_the_unit_of_its_largest_time_where_three_digits_remain() -> None:
    column = (724.0, 11.5, 0.1, 0.0994, 0.0031, 0.0)
    assert [duration(seconds, max(column)) for seconds in column] == [
        '12 min 04 s', '11.5 s', '0.100 s', '99.4 ms', '3.10 ms', '0 s',
    ]  # fmt: skip
    assert [duration(seconds, 0.3) for seconds in (0.3, 0.00042)] == ['300 ms', '0.420 ms']


def test_units_suit_the_number() -> None:
    assert [time_unit(one)[1] for one in (0, 1e-7, 1e-3, 0.9996, 1e4)] == [
        'us',
        'us',
        'ms',
        's',
        's',
    ]
    assert [size_unit(one) for one in (0, 1000, 1000 << 10)] == [
        (1, 'B'), (1024, 'KiB'), (1 << 20, 'MiB'),
    ]  # fmt: skip


def test_percent_keeps_small_shares_visible() -> None:
    assert [percent(share) for share in (0, 0.0001, 0.004, 0.0994, 0.31, 1)] == [
        '0.0 %',
        '< 0.1 %',
        '0.4 %',
        '9.9 %',
        '31 %',
        '100 %',
    ]


def test_ordinals_have_their_suffix() -> None:
    numbers = [1, 2, 3, 4, 11, 12, 13, 21, 112, 123]
    assert [ordinal(number) for number in numbers] == [
        *('1st', '2nd', '3rd', '4th', '11th', '12th', '13th', '21st', '112th', '123rd')
    ]


def test_digits_avoid_exponents() -> None:
    assert [digits(value) for value in (0, 0.01234, 1.2345, 12.345, 99.96, 12345.6)] == [
        *('0', '0.012', '1.23', '12.3', '100', '12\u202f346')
    ]


def test_counted_has_singular_and_plural() -> None:
    assert [counted(number, 'line') for number in (0, 1, 2)] == ['0 lines', '1 line', '2 lines']


@pytest.mark.parametrize(
    ('number', 'text'),
    [
        (0, '0 B'),
        (999, '999 B'),
        (4200, '4.10 KiB'),
        (1 << 20, '1.00 MiB'),
        (1023 << 20, '0.999 GiB'),
    ],
)
def test_sizes_are_in_units_of_1024(number: int, text: str) -> None:
    assert size(number) == text
