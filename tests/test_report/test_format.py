"""Formats of figures, and texts about a forward profile."""

from __future__ import annotations

from typing import Any

import pytest

from mmtempo.report.format import (
    MISSING,
    digits,
    duration,
    iterations,
    number,
    percent,
    profile_notes,
    profile_title,
    significant,
    size,
)
from mmtempo.utils import units


def test_digits_keeps_three_significant_ones() -> None:
    assert [digits(v) for v in (0, 0.01234, 1.2345, 12.345, 99.96, 123.45)] == [
        '0', '0.012', '1.23', '12.3', '100', '123',
    ]  # fmt: skip
    assert digits(12345.6, 'it/s') == '12\u202f346 it/s'


def test_duration_has_a_suitable_unit() -> None:
    values = (0, 4.2e-6, 0.00123, 0.0999, 0.9999, 3.456, 75.2, 99.99, 3725.0)
    assert [duration(value) for value in values] == [
        '0 s', '4.20 us', '1.23 ms', '99.9 ms', '1.00 s', '3.46 s', '75.2 s', '1 min 40 s',
        '1 h 02 min',
    ]  # fmt: skip


def test_size_and_percent() -> None:
    assert [size(value) for value in (0, 999, 1 << 20, 1023 << 20, 5 << 40)] == [
        '0 B', '999 B', '1.00 MiB', '0.999 GiB', '5.00 TiB',
    ]  # fmt: skip
    assert [percent(v) for v in (0, 0.0001, 0.1234, 1)] == ['0.0 %', '< 0.1 %', '12 %', '100 %']


def test_iterations_are_counted_in_words() -> None:
    assert [iterations(count) for count in (0, 1, 2.0, None)] == [
        '0 iterations', '1 iteration', '2 iterations', f'{MISSING} iterations',
    ]  # fmt: skip


def test_missing_figure_is_a_dash() -> None:
    for show in (digits, duration, size, percent):
        assert [show(value) for value in (None, float('nan'), float('inf'), 'x', True)] == [
            MISSING
        ] * 5
    assert number(True) is None
    assert significant(None) is None
    assert significant(1.23456789) == 1.2346


def test_tables_and_sentences_have_the_same_format() -> None:
    for value in (0.0, 1e-6, 0.00123, 0.0994, 0.0996, 0.314, 0.9999, 12.3, 99.96, 4000.0):
        assert duration(value) == units.duration(value)
        assert percent(value) == units.percent(value)
        assert digits(value) == units.digits(value)


@pytest.mark.parametrize(
    ('profile', 'text'),
    [
        (dict(iterations=100, asked=100), ', in 100 iterations'),
        (dict(iterations=1, asked=1), ', in 1 iteration'),
        (dict(iterations=7, asked=100), ', 7 of 100 iterations (the run ended)'),
        (dict(iterations=50), ', in 50 iterations'),  # files of older versions
        ({}, ''),
    ],
)
def test_profile_title_has_the_measured_iterations(profile: dict[str, Any], text: str) -> None:
    assert profile_title(profile) == f'Forward pass by stage{text}'


def test_profile_notes_explain_missing_and_nested_stages() -> None:
    stages = [dict(name=name) for name in ('neck', 'backbone.stages.2', 'backbone', 'head')]
    never, partly, nested = profile_notes(
        dict(stages=stages, never_called=['a', 'b.0'], by_children=['head'])
    )
    assert never.startswith('Never called in the forward pass: a, b.0. ')
    assert partly.startswith('Measured from the first child to the last: head. ')
    assert nested == 'The time of a nested stage is also part of its parent.'


def test_complete_profile_has_no_notes() -> None:
    stages = [dict(name='head'), dict(name='head2')]
    assert profile_notes(dict(stages=stages, never_called=[], by_children=[])) == []
    assert profile_notes(dict(stages=None, never_called=None)) == []
