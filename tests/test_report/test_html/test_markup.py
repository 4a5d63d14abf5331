"""Markup escapes whatever a log contains."""

from __future__ import annotations

import json

import pytest

from mmtempo.report.html.markup import Markup, element, put, script_json, table

BAD = '<script>alert("1&2")</script>'
SAFE = '&lt;script&gt;alert(&quot;1&amp;2&quot;)&lt;/script&gt;'


def test_text_is_escaped_once() -> None:
    assert put(BAD, Markup('<b>'), None, 3) == f'{SAFE}<b>3'
    assert element('p', element('b', BAD)) == f'<p><b>{SAFE}</b></p>'
    assert (
        element('p', class_=BAD, data_copy='x', id=None) == f'<p class="{SAFE}" data-copy="x"></p>'
    )


def test_table_escapes_cells_and_aligns_numbers() -> None:
    text = table(['a', BAD], [[1, BAD]], numeric=[0])
    assert f'<th class="n" scope="col">a</th><th scope="col">{SAFE}</th>' in text
    assert f'<td class="n">1</td><td>{SAFE}</td>' in text


def test_json_cannot_end_its_script_element() -> None:
    text = script_json({'name': f'{BAD}<!--', 'rest': '\u2028'})
    assert not set('<>&\u2028') & set(text)
    assert json.loads(text) == {'name': f'{BAD}<!--', 'rest': '\u2028'}
    with pytest.raises(ValueError, match='JSON'):
        script_json(float('nan'))
