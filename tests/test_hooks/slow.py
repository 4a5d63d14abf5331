"""Iterations that take long."""

from __future__ import annotations

import time
from typing import Any

from mmengine.hooks import Hook
from mmengine.registry import HOOKS


@HOOKS.register_module()
class Sleeps(Hook):
    """Make each iteration take longer.

    Args:
        seconds: Sleep per iteration.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_train_iter(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)
