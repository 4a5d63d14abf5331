"""Checks of values that a config may hold; `True` is no number here."""

from __future__ import annotations

import math
from typing import Any


def is_whole(value: Any, least: int = 1) -> bool:
    """Return whether a value is an integer of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any, above: float = -math.inf) -> bool:
    """Return whether a value is a finite number greater than `above`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value > above


def is_number_from(value: Any, least: float) -> bool:
    """Return whether a value is a finite number of at least `least`."""
    return is_number(value) and value >= least
