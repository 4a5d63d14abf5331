"""Suggest the name that a misspelled one stands for."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(
    name: object, known: Iterable[object], most: int = 1, prefix: str = '', cutoff: float = 0.6
) -> str:
    """Return '; did you mean X?', or '' where no known name is similar.

    Args:
        name: The name that was given.
        known: The names that exist.
        most: How many names to suggest at most. Defaults to 1.
        prefix: What to put before each suggested name. Defaults to ''.
        cutoff: How similar a name must be, from 0 to 1. Defaults to 0.6.
    """
    names = sorted(map(str, known))
    close = difflib.get_close_matches(str(name), names, n=most, cutoff=cutoff)
    return f'; did you mean {" or ".join(prefix + one for one in close)}?' if close else ''
