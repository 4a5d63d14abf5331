"""HTML in which nothing of a log can become code: whatever is not `Markup` is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

LONG = 20  # rows; a longer table scrolls by itself


class Markup(str):
    """Text that is HTML already."""

    def __new__(cls, text: str = '') -> Markup:
        return super().__new__(cls, text)


def put(*values: Any) -> Markup:
    """Values side by side, escaped unless they are `Markup`."""
    return Markup(
        ''.join(
            value if isinstance(value, Markup) else html.escape(str(value))
            for value in values
            if value is not None
        )
    )


def element(name: str, *children: Any, **attributes: str | None) -> Markup:
    """`<name attributes>children</name>`; `class_` is written class, `data_x` data-x."""
    words = ''.join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f'<{name}{words}>{put(*children)}</{name}>')


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Iterable[int] = ()
) -> Markup:
    """A table; `numeric` are the columns with numbers, which stand right."""
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
    """JSON that may stand inside a script element: no tag can be closed or opened in it."""
    text = json.dumps(value, allow_nan=False, separators=(',', ':'))
    for character in '<>&':
        text = text.replace(character, f'\\u{ord(character):04x}')
    return Markup(text)
