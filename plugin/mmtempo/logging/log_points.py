"""Log points: the iterations whose line a logger writes, and what other hooks add to it."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import LoggerHook

# Message hub key of scalars that another hook adds to the next line; dropped once it is written.
ALONG = 'mmtempo_along'


def writes_line(hook: LoggerHook, runner: Any, batch_idx: int) -> bool:
    """Return whether a `LoggerHook` logs at the end of this iteration."""
    interval, done = hook.interval, batch_idx + 1
    if interval > 0 and done % interval == 0:
        return True
    # The rest of an epoch: `len` of a loader is slow, and not needed with `ignore_last` once a
    # line was written in this epoch.
    if hook.ignore_last and done > interval:
        return False
    return done == len(runner.train_dataloader)
