"""Build HTML that executes nothing from a log: all values but `Markup` are escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

LONG = 20  # rows; a longer table gets a scroll bar


class Markup(str):
    """Text that already is HTML."""

    def __new__(cls, text: str = '') -> Markup:
        return super().__new__(cls, text)


def put(*values: Any) -> Markup:
    """Concatenate values, escaped unless they are `Markup`; None is skipped."""
    return Markup(
        ''.join(
            value if isinstance(value, Markup) else html.escape(str(value))
            for value in values
            if value is not None
        )
    )


def element(name: str, *children: Any, **attributes: str | None) -> Markup:
    """Return `<name attributes>children</name>`.

    Args:
        name: Name of the element.
        children: Its content, escaped unless it is `Markup`.
        attributes: Its attributes; `class_` becomes class, `data_x` data-x, None is skipped.
    """
    words = ''.join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f'<{name}{words}>{put(*children)}</{name}>')


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Iterable[int] = ()
) -> Markup:
    """Return a table.

    Args:
        head: Names of the columns.
        rows: Cells of each row.
        numeric: Columns that are aligned to the right. Defaults to ().
    """
    kinds = dict.fromkeys(numeric, 'n')
    cells = [element('th', name, class_=kinds.get(i), scope='col') for i, name in enumerate(head)]
    body = [
        element('tr', *(element('td', cell, class_=kinds.get(i)) for i, cell in enumerate(row)))
        for row in rows
    ]
    inner = put(element('thead', element('tr', *cells)), element('tbody', *body))
    width = 'narrow' if len(head) <= 3 else None
    height = 'scroll tall' if len(body) > LONG else 'scroll'
    return element('div', element('table', inner, class_=width), class_=height, tabindex='0')


def script_json(value: Any) -> Markup:
    """Return JSON for a script element: it cannot open or close a tag.

    Args:
        value: A value that JSON can represent; NaN raises an error.
    """
    text = json.dumps(value, allow_nan=False, separators=(',', ':'))
    for character in '<>&':
        text = text.replace(character, f'\\u{ord(character):04x}')
    return Markup(text)
