"""Figures as people read them; what was not measured is a dash."""

from __future__ import annotations

from typing import Any

MISSING = '\N{EN DASH}'
_SIZES = ('B', 'KiB', 'MiB', 'GiB', 'TiB')


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
    size = abs(found)
    places = (
        0 if size >= 99.95 or found == 0 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    )
    text = f'{found:,.{places}f}'.replace(',', '\u202f')
    return f'{text} {unit}' if unit else text


def duration(value: Any) -> str:
    """Seconds in the unit that suits them."""
    found = number(value)
    if found is None:
        return MISSING
    if abs(found) < 0.9995e-3:
        return digits(1e6 * found, 'µs') if found else '0 s'
    if abs(found) < 0.9995:
        return digits(1e3 * found, 'ms')
    if abs(found) < 99.95:
        return digits(found, 's')
    minutes, seconds = divmod(round(found), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours} h {minutes:02} min' if hours else f'{minutes} min {seconds:02} s'


def size(value: Any) -> str:
    """Bytes."""
    found = number(value)
    if found is None:
        return MISSING
    for unit in _SIZES:
        if abs(found) < 1000 or unit == _SIZES[-1]:
            break
        found /= 1024
    return f'{found:.0f} B' if unit == 'B' else digits(found, unit)


def percent(value: Any) -> str:
    """A fraction, in percent."""
    found = number(value)
    if found is None:
        return MISSING
    if found and abs(found) < 0.0005:
        return '< 0.1 %' if found > 0 else '> -0.1 %'
    return f'{100 * found:.1f} %'


def significant(value: Any, places: int = 5) -> float | None:
    """Rounded, so that thousands of them stay small as text."""
    found = number(value)
    return None if found is None else float(f'{found:.{places}g}')
