"""Figures in sentences: three digits that count, and a unit."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """As '87.3 ms', '2.31 s', '12 min 04 s', '3 h 20 min'."""
    if seconds < 0.9995:
        return f'{_digits(1000 * seconds)} ms'
    if seconds < 99.95:
        return f'{_digits(seconds)} s'
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours} h {minutes:02} min' if hours else f'{minutes} min {rest:02} s'


def percent(share: float) -> str:
    """As '0.4 %', '31 %'."""
    return f'{100 * share:.{0 if share >= 0.0995 else 1}f} %'


def ordinal(number: int) -> str:
    """As '1st', '22nd', '113th'."""
    suffixes = {1: 'st', 2: 'nd', 3: 'rd'}
    suffix = 'th' if number % 100 in (11, 12, 13) else suffixes.get(number % 10, 'th')
    return f'{number}{suffix}'


def _digits(value: float) -> str:
    return f'{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}'
