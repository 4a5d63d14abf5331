"""Format figures of a report; a dash stands for what was not measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mmtempo.utils import units
from mmtempo.utils.checks import is_number

MISSING = '\N{EN DASH}'


def number(value: Any) -> float | None:
    """Return a finite number of a log as a float, else None."""
    return float(value) if is_number(value) else None


def total(lines: Iterable[Mapping[str, Any]], key: str) -> float:
    """Return the sum of a key over lines; lines without a number count as 0."""
    return sum(number(line.get(key)) or 0 for line in lines)


def digits(value: Any, unit: str = '') -> str:
    """Format a number with three significant digits, never as 1e+03."""
    found = number(value)
    if found is None:
        return MISSING
    text = units.digits(found)
    return f'{text} {unit}' if unit else text


def duration(value: Any, largest: float = 0.0) -> str:
    """Format seconds in a suitable unit, that of the largest of a column if that is readable."""
    found = number(value)
    return MISSING if found is None else units.duration(found, largest)


def size(value: Any) -> str:
    """Format bytes in units of 1024."""
    found = number(value)
    return MISSING if found is None else units.size(found)


def percent(value: Any) -> str:
    """Format a share in percent."""
    found = number(value)
    return MISSING if found is None else units.percent(found)


def iterations(count: Any) -> str:
    """Format a count as '1 iteration' or '12 iterations'."""
    found = number(count)
    return f'{MISSING} iterations' if found is None else units.counted(round(found), 'iteration')


def significant(value: Any, places: int = 5) -> float | None:
    """Round to significant digits, so that a page with thousands of numbers stays small."""
    found = number(value)
    return None if found is None else float(f'{found:.{places}g}')


def profile_title(profile: Mapping[str, Any]) -> str:
    """Return the title of a forward profile, with the number of measured iterations if known."""
    text = 'Forward pass by stage'
    measured, requested = number(profile.get('iterations')), number(profile.get('asked'))
    if measured is None:
        return text
    if requested is not None and measured < requested:
        return f'{text}, {round(measured)} of {iterations(requested)} (the run ended)'
    return f'{text}, in {iterations(measured)}'


def profile_notes(profile: Mapping[str, Any]) -> list[str]:
    """Explain why a stage of a profile is missing or too short, or why shares exceed 100 %."""
    never_called, by_children = (
        _listed(profile.get(key)) for key in ('never_called', 'by_children')
    )
    texts = []
    if never_called:
        texts.append(
            f'Never called in the forward pass: {never_called}. Calls of .forward and modules '
            'compiled into another one are not observed; their time is in the rest.'
        )
    if by_children:
        texts.append(
            f'Measured from the first child to the last: {by_children}. Calls of .forward or of '
            'other methods are not observed; the time before and after the children is in the rest.'
        )
    names = [str(stage.get('name')) for stage in profile.get('stages') or []]
    if any(name.startswith(f'{outer}.') for name in names for outer in names):
        texts.append('The time of a nested stage is also part of its parent.')
    return texts


def _listed(names: Any) -> str:
    return ', '.join(map(str, names)) if isinstance(names, list) else ''
