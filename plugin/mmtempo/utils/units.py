"""Format numbers for people: three significant digits and a unit."""

from __future__ import annotations

# Consoles and logs in some encodings, such as GBK, have no micro sign.
_TIMES = ((1.0, 's'), (1e-3, 'ms'), (1e-6, 'us'))
_SIZES = ('B', 'KiB', 'MiB', 'GiB', 'TiB')


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the seconds and the name of the unit below minutes that suits a time."""
    return next((one for one in _TIMES if abs(seconds) >= 0.9995 * one[0]), _TIMES[-1])


def size_unit(number: float) -> tuple[float, str]:
    """Return the bytes and the name of the unit that suits a size."""
    power = sum(abs(number) >= 1000 * 1024.0**power for power in range(len(_SIZES) - 1))
    return 1024.0**power, _SIZES[power]


def duration(seconds: float, largest: float = 0.0) -> str:
    """Format seconds as '420 us', '87.3 ms', '2.31 s', '12 min 04 s' or '3 h 20 min'.

    Args:
        seconds: The time.
        largest: Largest time of its column, whose unit is used where three digits remain.
            Defaults to 0.0: the unit that suits the time alone.
    """
    if not seconds:
        return '0 s'
    if abs(seconds) < 99.95:
        unit, name = time_unit(largest)
        if abs(seconds) < 0.0995 * unit or abs(seconds) > largest:
            unit, name = time_unit(seconds)
        return digits(seconds / unit, name)
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f'{hours} h {minutes:02} min' if hours else f'{minutes} min {rest:02} s'


def size(number: float) -> str:
    """Format bytes in units of 1024, as '512 B', '12.3 MiB' or '1.21 GiB'."""
    unit, name = size_unit(number)
    return f'{number:.0f} B' if name == 'B' else digits(number / unit, name)


def percent(share: float) -> str:
    """Format a share as '< 0.1 %', '0.4 %' or '31 %'."""
    if 0 < abs(share) < 0.0005:
        return '< 0.1 %' if share > 0 else '> -0.1 %'
    return f'{100 * share:.{0 if abs(share) >= 0.0995 else 1}f} %'


def digits(value: float, unit: str = '') -> str:
    """Format a number as '0.012', '1.23', '12.3', '123' or '12 345 it/s', never as 1e+03."""
    size = abs(value)
    places = 0 if size >= 99.95 or not value else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return f'{value:,.{places}f} {unit}'.replace(',', '\u202f').rstrip()


def counted(number: float, what: str) -> str:
    """Format a count as '1 iteration' or '12 iterations'."""
    return f'{number} {what}{"" if number == 1 else "s"}'


def ordinal(number: int) -> str:
    """Format an ordinal number as '1st', '22nd' or '113th'."""
    suffixes = {1: 'st', 2: 'nd', 3: 'rd'}
    suffix = 'th' if number % 100 in (11, 12, 13) else suffixes.get(number % 10, 'th')
    return f'{number}{suffix}'
