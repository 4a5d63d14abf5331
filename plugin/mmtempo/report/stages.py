"""What there is to say of a stage profile beside its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmtempo.utils.units import counted

from .format import number


def title(found: Mapping[str, Any]) -> str:
    """With the iterations that were measured, where they are known."""
    text = 'Forward pass by stage'
    iterations, asked = number(found.get('iterations')), number(found.get('asked'))
    if iterations is None:
        return text
    if asked is not None and iterations < asked:
        asked_for = counted(round(asked), 'iteration')
        return f'{text}, {round(iterations)} of {asked_for}: the run had ended'
    return f'{text}, in {counted(round(iterations), "iteration")}'


def notes(found: Mapping[str, Any]) -> list[str]:
    """Why a part is missing, or has less than expected, or shares do not add up."""
    never, partly = (_listed(found.get(key)) for key in ('never_called', 'by_children'))
    texts = []
    if never:
        texts.append(
            f'Never called in the forward pass: {never}. What is called by its .forward, or '
            'compiled into another module, is not seen; its time is in the rest.'
        )
    if partly:
        texts.append(
            f'Measured from the first child to the last: {partly}. A call of .forward or of '
            'another method is not seen; what comes before and behind its children is in the rest.'
        )
    names = [str(stage.get('name')) for stage in found.get('stages') or []]
    if any(name.startswith(f'{outer}.') for name in names for outer in names):
        texts.append('A part within another one counts for both.')
    return texts


def _listed(names: Any) -> str:
    return ', '.join(map(str, names)) if isinstance(names, list) else ''
