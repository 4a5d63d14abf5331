"""Colors of phases and categories, as names of CSS variables that differ by scheme."""

from __future__ import annotations

from collections.abc import Iterable

# After Okabe and Ito: distinguishable with color blindness. The values are in page.css.
PHASES = {
    'data': '--orange',
    'to_device': '--sky',
    'forward': '--blue',
    'backward': '--green',
    'forward and backward': '--blue',
    'train_step': '--blue',
    'step': '--purple',
    'release': '--slate',
    'loader: unpack': '--sand',
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
# A symbol for each category, since not every reader can distinguish the colors.
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
# Words in names of phases: all hooks that save share a color, and all that log.
_WORDS = {
    'checkpoint': '--vermilion',
    'SnapshotFence': '--vermilion',
    'Checkpoint': '--vermilion',
    'Logger': '--brown',
}
_HOOKS = ('--olive', '--slate', '--rose', '--sand', '--plum', '--navy', '--moss', '--clay')


def phase_colors(names: Iterable[str]) -> dict[str, str]:
    """Return a color for each phase: a fixed one if it is known, else the next of the hooks.

    Args:
        names: Names of phases.
    """
    found: dict[str, str] = {}
    turns = 0
    for name in names:
        known = PHASES.get(name) or _color_by_word(name)
        found[name] = known or _HOOKS[turns % len(_HOOKS)]
        turns += known is None
    return found


def _color_by_word(name: str) -> str | None:
    return next((color for word, color in _WORDS.items() if word in name), None)
