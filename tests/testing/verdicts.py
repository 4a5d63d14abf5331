"""Helpers of tests that judge a run."""

from __future__ import annotations

from typing import Any

from mmtempo.report.verdict import Verdict

# `default_hooks` of a config that names stock hooks only.
STOCK_HOOKS = dict(runtime_info='RuntimeInfoHook', logger='LoggerHook', checkpoint='CheckpointHook')


def overrides(verdict: Verdict) -> list[str]:
    """Return the overrides that a verdict advises."""
    return [change.override for change in verdict.change]


def stalled(cause: str, category: str, seconds: float, count: int = 40) -> dict[str, Any]:
    """Return the changes of a summary whose stalls have one cause.

    Args:
        cause: The cause.
        category: Its category.
        seconds: Seconds lost.
        count: Number of stalls. Defaults to 40.
    """
    causes = {cause: dict(seconds=seconds, count=count, category=category)}
    return dict(lost=dict(seconds=seconds, share=0.1, count=count, by_cause=causes))
