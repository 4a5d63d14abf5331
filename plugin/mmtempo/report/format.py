"""Figures as people read them; what was not measured is a dash."""

from __future__ import annotations

from typing import Any

from mmtempo.utils import units

MISSING = '\N{EN DASH}'


def number(value: Any) -> float | None:
    """A finite number of a log, or None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    value = float(value)
    return value if abs(value) < float('inf') else None


def digits(value: Any, unit: str = '') -> str:
    """Three digits that count, never as 1e+03."""
    found = number(value)
    if found is None:
        return MISSING
    text = units.digits(found)
    return f'{text} {unit}' if unit else text


def duration(value: Any) -> str:
    """Seconds in the unit that suits them."""
    found = number(value)
    return MISSING if found is None else units.duration(found)


def size(value: Any) -> str:
    """Bytes."""
    found = number(value)
    return MISSING if found is None else units.size(found)


def percent(value: Any) -> str:
    """A fraction, in percent."""
    found = number(value)
    return MISSING if found is None else units.percent(found)


def significant(value: Any, places: int = 5) -> float | None:
    """Rounded, so that thousands of them stay small as text."""
    found = number(value)
    return None if found is None else float(f'{found:.{places}g}')
