"""Changes of a config are recorded, and keys of --cfg-options are kept."""

from __future__ import annotations

import pytest
from mmengine.config import Config

from mmtempo.policies.editor import Editor


@pytest.fixture
def cfg() -> Config:
    return Config(dict(a=dict(b=1, c=[dict(d=2), dict(d=3)]), e=None))


def recorded(editor: Editor) -> list[str]:
    return [str(change) for change in editor.changes]


def test_changes_are_recorded(cfg: Config) -> None:
    editor = Editor(cfg)
    editor.set('a.b', 5, 'more')
    editor.set('a.c.1.d', 6, 'more')
    editor.set('e.f.g', True, 'new')
    editor.set('a.b', 5, 'again')
    assert (cfg.a.b, cfg.a.c[1].d, cfg.e.f.g) == (5, 6, True)
    assert recorded(editor) == [
        'a.b: 1 -> 5; more',
        'a.c.1.d: 3 -> 6; more',
        'e.f.g: None -> True; new',
    ]


@pytest.mark.parametrize('keep', ['a', 'a.b', 'a.b.x'])
def test_key_of_the_user_is_kept(cfg: Config, keep: str) -> None:
    editor = Editor(cfg, keep=[keep])
    editor.set('a.b', 5, 'more')
    assert cfg.a.b == 1
    assert recorded(editor) == ['a.b: 1 is kept, because --cfg-options sets it']


def test_key_with_a_similar_name_is_not_kept(cfg: Config) -> None:
    editor = Editor(cfg, keep=['a.bb', 'a.c'])
    editor.set('a.b', 5, 'more')
    assert cfg.a.b == 5


def test_missing_keys_have_a_default(cfg: Config) -> None:
    editor = Editor(cfg)
    assert editor.get('a.x.y') is None
    assert editor.get('a.c.7.d', 'none') == 'none'
    editor.leave('a.x', 'is not known')
    assert recorded(editor) == ['a.x: is not known']
