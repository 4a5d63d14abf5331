"""What the log processor asks of histories, and the totals that they keep beyond their length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .bounded_history import BoundedHistory

RUNNING = ('mean', 'min', 'max', 'current')  # statistics over the whole training


def length_of_history(runner: Any, least: int, key: str) -> int:
    """Return how many values of a key the log processor may ask for.

    Args:
        runner: The runner of the training, or None if it is gone: its hub outlives it, and may
            be filled by another training.
        least: The smallest length.
        key: Key of the history in the message hub, as 'train/loss'.
    """
    if runner is None:
        return least
    processor = runner.log_processor
    lengths = [least, processor.window_size]
    source = key.partition('/')[2]
    windows = [cfg.get('window_size') for cfg in processor.custom_cfg if cfg['data_src'] == source]
    lengths += [window for window in windows if isinstance(window, int)]
    if key.startswith('val/') and runner.val_loop is not None:
        # mmengine's mean over an evaluation asks for one value more than it has.
        lengths.append(len(runner.val_dataloader) + 1)
    elif 'epoch' in windows:
        lengths.append(len(runner.train_dataloader))
    return max(lengths)


def log_global_windows(runner: Any, least: int) -> None:
    """Log what each `window_size='global'` of the log processor is computed from.

    Args:
        runner: The runner of the training.
        least: The smallest length of a history.
    """
    for cfg in runner.log_processor.custom_cfg:
        if cfg.get('window_size') != 'global':
            continue
        method, name = cfg.get('method_name'), cfg.get('log_name', cfg['data_src'])
        kept = length_of_history(runner, least, f'train/{cfg["data_src"]}')
        if method in RUNNING:
            runner.logger.info(
                f"log_processor: '{name}' over window_size='global' is computed as a running "
                f'{method}; single values are kept for {kept} iterations.'
            )
        else:
            runner.logger.warning(
                f"log_processor: '{name}' asks for {method!r} over window_size='global', but "
                f"only the last {kept} values are kept; use method_name='mean', which covers "
                'the whole training, or a number as window_size.'
            )


def totals_of(live: dict[str, Any], copies: dict[str, Any]) -> Callable[[], dict[str, list]]:
    """Return a function that gives the running totals at this moment, by key.

    The function may be called later and in another thread: it reads the copies only.

    Args:
        live: The histories of the message hub.
        copies: Their copies for a checkpoint; the function waits for values that are still on
            their way from the device to a copy.
    """
    now = {key: one for key, one in live.items() if isinstance(one, BoundedHistory)}
    totals = {key: one.totals for key, one in now.items() if one.total > one.max_length}
    coming = {key: one for key, one in copies.items() if isinstance(one, BoundedHistory)}

    def complete() -> dict[str, list]:
        for key, copy in coming.items():
            copy.plain()  # takes in the values that were on their way
            if copy.total > copy.max_length:
                totals[key] = copy.totals
        return totals

    return complete
