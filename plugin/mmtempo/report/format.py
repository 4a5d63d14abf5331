"""Format figures of a report; a dash stands for what was not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
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


def _or_missing(show: Callable[..., str]) -> Callable[..., str]:
    """Return a format of `units` that also takes what was not measured."""

    def shown(value: Any, *options: Any) -> str:
        found = number(value)
        return MISSING if found is None else show(found, *options)

    return shown


duration, size = _or_missing(units.duration), _or_missing(units.size)
percent, digits = _or_missing(units.percent), _or_missing(units.digits)
count = _or_missing('{:.0f}'.format)


def iterations(count: Any) -> str:
    """Format a count as '1 iteration' or '12 iterations'."""
    found = number(count)
    return f'{MISSING} iterations' if found is None else units.counted(round(found), 'iteration')


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace inner dicts by their items."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found.update(value if isinstance(value, dict) else {key: value})
    return found


def few(values: Any, separator: str = ', ', count: int = 8) -> str:
    """Join the first values of a list; any other value is converted to text."""
    if not isinstance(values, (list, tuple)):
        return str(values)
    shown = [*values[:count], '…'] if len(values) > count else values
    return separator.join(map(str, shown))


def fact(value: Any) -> str:
    """Format a setting or a fact of any type."""
    if isinstance(value, bool):
        return 'yes' if value else 'no'
    if isinstance(value, float):
        return f'{value:.0f}' if value.is_integer() else digits(value)
    return few(value, count=30)


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
