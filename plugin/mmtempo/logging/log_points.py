"""Log points: the iterations whose line a logger writes, and what other hooks add to it."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import LoggerHook

# In the message hub, until the line is written: what another hook has for the same step.
ALONG = 'mmtempo_along'


def writes_line(hook: LoggerHook, runner: Any, batch_idx: int) -> bool:
    """Whether a `LoggerHook` logs at the end of this iteration."""
    interval, done = hook.interval, batch_idx + 1
    if interval > 0 and done % interval == 0:
        return True
    # The rest at the end of an epoch. To ask for its length costs more than all else here, and
    # where rests are ignored it does not matter behind the first line: the epoch is too long.
    if hook.ignore_last and done > interval:
        return False
    return done == len(runner.train_dataloader)
