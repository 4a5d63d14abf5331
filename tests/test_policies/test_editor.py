"""What is changed in a config is told, and what somebody has set on purpose stays."""

from __future__ import annotations

import pytest
from mmengine.config import Config

from mmtempo.policies.editor import Editor


@pytest.fixture
def cfg() -> Config:
    return Config(dict(a=dict(b=1, c=[dict(d=2), dict(d=3)]), e=None))


def told(editor: Editor) -> list[str]:
    return [str(change) for change in editor.changes]


def test_changes_are_told(cfg: Config) -> None:
    editor = Editor(cfg)
    editor.set('a.b', 5, 'more')
    editor.set('a.c.1.d', 6, 'more')
    editor.set('e.f.g', True, 'new')
    editor.set('a.b', 5, 'again')
    assert (cfg.a.b, cfg.a.c[1].d, cfg.e.f.g) == (5, 6, True)
    assert told(editor) == [
        'a.b: 1 -> 5; more',
        'a.c.1.d: 3 -> 6; more',
        'e.f.g: None -> True; new',
    ]


@pytest.mark.parametrize('keep', ['a', 'a.b', 'a.b.x'])
def test_what_is_set_on_purpose_stays(cfg: Config, keep: str) -> None:
    editor = Editor(cfg, keep=[keep])
    editor.set('a.b', 5, 'more')
    assert cfg.a.b == 1
    assert told(editor) == ['a.b: 1 is kept as --cfg-options has it']


def test_others_with_a_like_name_do_not(cfg: Config) -> None:
    editor = Editor(cfg, keep=['a.bb', 'a.c'])
    editor.set('a.b', 5, 'more')
    assert cfg.a.b == 5


def test_what_is_not_there(cfg: Config) -> None:
    editor = Editor(cfg)
    assert editor.get('a.x.y') is None
    assert editor.get('a.c.7.d', 'none') == 'none'
    editor.leave('a.x', 'is not known')
    assert told(editor) == ['a.x: is not known']
