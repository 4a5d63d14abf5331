"""Keeps what a training step returns on the device until it is logged."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import CheckpointHook, RuntimeInfoHook
from mmengine.registry import HOOKS

from ..core.nonfinite import NonFiniteWatch
from .sparse_scalars import SparseScalars

TOTALS = 'mmtempo_totals'
RUNNING = ('mean', 'min', 'max', 'current')


@HOOKS.register_module()
class SparseRuntimeInfoHook(RuntimeInfoHook):
    """`RuntimeInfoHook` that waits for nothing and whose history does not grow.

    Losses stay on the device; they leave it together when something is logged, or when anything
    reads a history of the message hub. Histories keep the last values, as many as the log
    processor's windows ask for, and running totals: a window 'global' gets the running mean,
    minimum or maximum.

    Example::

        default_hooks = dict(runtime_info=dict(type='SparseRuntimeInfoHook', on_nonfinite='stop'))

    It logs the keys of `RuntimeInfoHook`:

    ===================  ==========================================================
    key                  value
    ===================  ==========================================================
    ``train/lr``         learning rate, every iteration
    ``train/<name>``     what the training step returned, losses and accuracies
    ``val/<metric>``     results of the last evaluation
    ===================  ==========================================================

    Args:
        history_length: How many values of a key to keep, at least. Defaults to 100.
        on_nonfinite: What to do when a loss, or the gradient norm where it is computed, is nan
            or infinite: 'stop' ends the run with the iteration and the values as soon as they
            are logged and before anything is saved or evaluated; 'warn' goes on; 'skip' leaves
            such updates out, decided on the device (needs `SparseOptimWrapper`).
            Iterations are counted as in the log, from 1. Defaults to 'stop'.
    """

    # As RuntimeInfoHook: what others read has to be there first.
    priority = 'VERY_HIGH'

    def __init__(self, history_length: int = 100, on_nonfinite: str = 'stop') -> None:
        if not isinstance(history_length, int) or history_length < 1:
            raise ValueError(
                'default_hooks.runtime_info.history_length must be a whole number of at least 1, '
                f'found {history_length!r}'
            )
        super().__init__()
        self.history_length = history_length
        self.on_nonfinite = on_nonfinite
        NonFiniteWatch(on_nonfinite, print)  # an unknown action is an error now, not later
        self._scalars: Any = None  # SparseScalars, from the start of a training on

    def before_train(self, runner: Any) -> None:
        super().before_train(runner)
        hub = runner.message_hub
        watch = NonFiniteWatch(self.on_nonfinite, runner.logger.warning, lambda: _advice(hub))
        self._scalars = SparseScalars(hub, watch, lambda key: self._length(runner, key))
        self._scalars.bound()
        for key, totals in (hub.pop_info(TOTALS) or {}).items():
            if key in hub.log_scalars:
                hub.log_scalars[key].totals = totals
        self._say_global_windows(runner)
        if self.on_nonfinite == 'skip':
            _skip_updates(runner.optim_wrapper)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        scalars = self._scalars
        for key, value in (outputs or {}).items():
            scalars.note(f'train/{key}', value)
        scalars.seal(runner.iter)
        scalars.bound()
        if self._is_saved_now(runner):
            self._look(runner)

    def before_val(self, runner: Any) -> None:
        super().before_val(runner)
        self._look(runner)

    def after_train_epoch(self, runner: Any) -> None:
        if any(hook.by_epoch for hook in _savers(runner)):
            self._look(runner)

    def after_train(self, runner: Any) -> None:
        super().after_train(runner)
        self._look(runner)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        if self._scalars is None:
            return
        self._look(runner)
        self._scalars.bound()
        totals = {
            key: history.totals
            for key, history in runner.message_hub.log_scalars.items()
            if history.total > history.max_length
        }
        checkpoint['message_hub']['runtime_info'][TOTALS] = totals

    def _look(self, runner: Any) -> None:
        """Stop before weights that are not finite are saved or judged."""
        if self._scalars is not None:
            self._scalars.fetch()
            self._scalars.check()

    def _is_saved_now(self, runner: Any) -> bool:
        # Before the hook itself: stock deletes older files first.
        return any(
            not hook.by_epoch and self.every_n_train_iters(runner, hook.interval)
            for hook in _savers(runner)
        ) or self.is_last_train_iter(runner)

    def _length(self, runner: Any, key: str) -> int:
        """How many values the log processor may ask for."""
        processor = runner.log_processor
        lengths = [self.history_length, processor.window_size]
        windows = [cfg.get('window_size') for cfg in processor.custom_cfg]
        lengths += [window for window in windows if isinstance(window, int)]
        if key.startswith('val/') and runner.val_loop is not None:
            # Means over an evaluation ask for one more than it has.
            lengths.append(len(runner.val_dataloader) + 1)
        elif 'epoch' in windows:
            lengths.append(len(runner.train_dataloader))
        return max(lengths)

    def _say_global_windows(self, runner: Any) -> None:
        for cfg in runner.log_processor.custom_cfg:
            if cfg.get('window_size') != 'global':
                continue
            method, name = cfg.get('method_name'), cfg.get('log_name', cfg['data_src'])
            if method in RUNNING:
                runner.logger.info(
                    f"log_processor: '{name}' over window_size='global' is kept as a running "
                    f'{method}; single values are kept for {self.history_length} iterations.'
                )
            else:
                runner.logger.warning(
                    f"log_processor: '{name}' asks for {method!r} over window_size='global', but "
                    f'only the last {self._length(runner, "train/")} values are kept. Use '
                    "method_name='mean', which runs over the whole training, or a number as "
                    'window_size.'
                )


def _savers(runner: Any) -> list[CheckpointHook]:
    return [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]


def _advice(hub: Any) -> str:
    checkpoint = hub.get_info('last_ckpt')
    saved = (
        f'The last checkpoint, {checkpoint}, is from before: resume from it'
        if checkpoint
        else 'No checkpoint has been written yet: start again'
    )
    return (
        f'{saved} with a lower learning rate, gradient clipping (optim_wrapper.clip_grad) or '
        "another loss scale; default_hooks.runtime_info.on_nonfinite='skip' leaves such updates "
        "out, 'warn' goes on."
    )


def _skip_updates(wrapper: Any) -> None:
    wrappers = list(wrapper.values()) if hasattr(wrapper, 'optim_wrappers') else [wrapper]
    for one in wrappers:
        if not hasattr(one, 'skip_nonfinite'):
            raise ValueError(
                "default_hooks.runtime_info.on_nonfinite='skip' needs optim_wrapper.type="
                "'SparseOptimWrapper' or 'SparseAmpOptimWrapper', found "
                f"{type(one).__name__!r}; change it, or use on_nonfinite='stop'"
            )
        one.skip_nonfinite = True
