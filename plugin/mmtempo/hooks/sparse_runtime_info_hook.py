"""Keeps what a training step returns on the device until it is logged."""

from __future__ import annotations

import os.path as osp
import weakref
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.hooks import CheckpointHook, RuntimeInfoHook
from mmengine.registry import HOOKS

from ..core.nonfinite import NonFiniteWatch, bad_tensors
from ..downloads import register_safe_downloads
from .bounded_history import BoundedHistory
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
        on_nonfinite: What to do when a loss, or the gradient norm where `SparseOptimWrapper`
            computes it, is nan or infinite: 'stop' ends the run, with the iteration and the
            values, once they have been read for the log; 'warn' goes on; 'skip' leaves such
            updates out, decided on the device (needs `SparseOptimWrapper`). Before a save, an
            evaluation and the end of training the weights themselves are looked at, where the
            host waits anyway. Iterations are counted as in the log, from 1. Defaults to 'stop'.
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
        # Both from the start of a training on; the scalars until its end.
        self._scalars: Any = None
        self._watch: Any = None
        self._looked_at = -1
        # The list of hooks that they were found in, and how many there were.
        self._seen: Any = None
        self._count = 0
        self._savers: list[CheckpointHook] = []

    def before_run(self, runner: Any) -> None:
        super().before_run(runner)
        register_safe_downloads()

    def before_train(self, runner: Any) -> None:
        super().before_train(runner)
        # The hub outlives runner and hooks, which know each other.
        hub, of_run, least = runner.message_hub, weakref.ref(runner), self.history_length
        self._watch = NonFiniteWatch(self.on_nonfinite, runner.logger.warning, lambda: _advice(hub))
        self._scalars = SparseScalars(hub, self._watch, lambda key: _length(of_run(), least, key))
        self._looked_at = -1
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
        scalars.check()

    def before_val(self, runner: Any) -> None:
        super().before_val(runner)
        self._look(runner)

    def after_train_epoch(self, runner: Any) -> None:
        if any(hook.by_epoch for hook in self._find_savers(runner)):
            self._look(runner)

    def after_train(self, runner: Any) -> None:
        super().after_train(runner)
        self._look(runner)
        self._scalars.close()
        self._scalars = None

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        if self._scalars is not None:
            if self._looked_at != runner.iter:  # whoever saves is no CheckpointHook
                self._look(runner, together=False)
            self._scalars.bound()
        totals = {
            key: history.totals
            for key, history in runner.message_hub.log_scalars.items()
            if isinstance(history, BoundedHistory) and history.total > history.max_length
        }
        checkpoint['message_hub']['runtime_info'][TOTALS] = totals

    def _look(self, runner: Any, together: bool = True) -> None:
        """Stop before weights that are not finite are saved or judged; waits for the device.

        In all processes at once, where all of them are here (`together`): one that stops alone
        leaves the others waiting for it.
        """
        if self._scalars is None:
            return
        self._looked_at = runner.iter
        self._scalars.fetch()
        names = bad_tensors(runner.model)
        if names:
            more = f' and {len(names) - 1} more' if len(names) > 1 else ''
            what = f'{names[0]}{more} of the model, after losses that were finite'
            self._watch.found(runner.iter, what, in_weights=True)
        if together and get_world_size() > 1:
            flag = torch.tensor([float(self._watch.is_bad)])
            all_reduce(flag, 'max')
            if flag.item() and not self._watch.is_bad:
                self._watch.found(runner.iter, 'in another process, whose log says more')
        self._scalars.check()

    def _is_saved_now(self, runner: Any) -> bool:
        # Before the hook itself: stock deletes older files first.
        return any(
            not hook.by_epoch and self.every_n_train_iters(runner, hook.interval, hook.save_begin)
            for hook in self._find_savers(runner)
        ) or self.is_last_train_iter(runner)

    def _find_savers(self, runner: Any) -> list[CheckpointHook]:
        """Those of the runner's hooks; looked for again where there are others now."""
        hooks = runner.hooks
        if hooks is not self._seen or len(hooks) != self._count:
            self._seen, self._count = hooks, len(hooks)
            self._savers = [hook for hook in hooks if isinstance(hook, CheckpointHook)]
        return self._savers

    def _say_global_windows(self, runner: Any) -> None:
        for cfg in runner.log_processor.custom_cfg:
            if cfg.get('window_size') != 'global':
                continue
            method, name = cfg.get('method_name'), cfg.get('log_name', cfg['data_src'])
            kept = _length(runner, self.history_length, f'train/{cfg["data_src"]}')
            if method in RUNNING:
                runner.logger.info(
                    f"log_processor: '{name}' over window_size='global' is kept as a running "
                    f'{method}; single values are kept for {kept} iterations.'
                )
            else:
                runner.logger.warning(
                    f"log_processor: '{name}' asks for {method!r} over window_size='global', but "
                    f"only the last {kept} values are kept. Use method_name='mean', which runs "
                    'over the whole training, or a number as window_size.'
                )


def _length(runner: Any, least: int, key: str) -> int:
    """How many values the log processor may ask for."""
    if runner is None:  # it has gone, and its hub is filled by whoever trains next
        return least
    processor = runner.log_processor
    lengths = [least, processor.window_size]
    source = key.partition('/')[2]
    windows = [cfg.get('window_size') for cfg in processor.custom_cfg if cfg['data_src'] == source]
    lengths += [window for window in windows if isinstance(window, int)]
    if key.startswith('val/') and runner.val_loop is not None:
        # Means over an evaluation ask for one more than it has.
        lengths.append(len(runner.val_dataloader) + 1)
    elif 'epoch' in windows:
        lengths.append(len(runner.train_dataloader))
    return max(lengths)


def _advice(hub: Any) -> str:
    saved = [hub.get_info(key) for key in ('last_ckpt', 'best_ckpt')]
    there = [path for path in saved if path and osp.isfile(path)]
    start = (
        f'The last checkpoint, {there[0]}, is from before: resume from it'
        if there
        else 'No checkpoint has been written yet: start again'
    )
    return (
        f'{start} with a lower learning rate, gradient clipping (optim_wrapper.clip_grad) or '
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
