"""Which colour stands for what: names of CSS variables, so that light and dark differ."""

from __future__ import annotations

from collections.abc import Iterable

# After Okabe and Ito: told apart also by the colour-blind. Values are in page.css.
PHASES = {
    'data': '--orange',
    'to_device': '--sky',
    'forward': '--blue',
    'backward': '--green',
    'forward and backward': '--blue',
    'train_step': '--blue',
    'step': '--purple',
    'evaluation': '--yellow',
    'everything else': '--blue',
    'unexplained': '--grey',
    'other': '--pale',
}
CATEGORIES = {
    'data': '--orange',
    'hook': '--purple',
    'logging': '--brown',
    'checkpoint': '--vermilion',
    'evaluation': '--yellow',
    'gc': '--green',
    'memory': '--sky',
    'host': '--blue',
    'device': '--olive',
    'warm-up': '--slate',
    'unexplained': '--grey',
}
# One symbol a category as well: colour alone does not tell them apart for everybody.
SYMBOLS = {
    'data': 'circle',
    'hook': 'square',
    'logging': 'cross',
    'checkpoint': 'diamond',
    'evaluation': 'triangle-up',
    'gc': 'x',
    'memory': 'pentagon',
    'host': 'hexagon',
    'device': 'star',
    'warm-up': 'circle-open',
    'unexplained': 'diamond-open',
}
# Words in names of phases: saving and logging look alike, whichever hook does it.
_WORDS = {
    'checkpoint': '--vermilion',
    'SnapshotFence': '--vermilion',
    'Checkpoint': '--vermilion',
    'Logger': '--brown',
}
_HOOKS = ('--olive', '--slate', '--rose', '--sand', '--plum', '--navy', '--moss', '--clay')


def phase_colors(names: Iterable[str]) -> dict[str, str]:
    """A colour for each phase: known ones keep theirs, other hooks take turns."""
    found: dict[str, str] = {}
    turns = 0
    for name in names:
        known = PHASES.get(name) or _color_by_word(name)
        found[name] = known or _HOOKS[turns % len(_HOOKS)]
        turns += known is None
    return found


def _color_by_word(name: str) -> str | None:
    return next((color for word, color in _WORDS.items() if word in name), None)
