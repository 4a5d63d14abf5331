"""Keeps what a training step returns on the device until it is logged."""

from __future__ import annotations

import os.path as osp
import weakref
from collections.abc import Callable
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook, RuntimeInfoHook
from mmengine.registry import HOOKS

from mmtempo.checkpoint.content import leaves_late, leaves_late_parts
from mmtempo.checkpoint.io.snapshot import Deferred
from mmtempo.checkpoint.loading import register_safe_downloads
from mmtempo.checkpoint.signals import is_training
from mmtempo.checkpoint.weights_check import WeightsCheck, await_saves, is_copied_now, saves_copies
from mmtempo.logging.bounded_history import BoundedHistory
from mmtempo.logging.nonfinite import NonFiniteWatch
from mmtempo.logging.scalar_buffer import ScalarBuffer

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
            values, once they have been read for the log; 'warn' continues; 'skip' leaves such
            updates out, decided on the device (needs `SparseOptimWrapper`). The weights
            themselves are judged as below; bad ones end the run with 'skip' too. Iterations are
            counted as in the log, from 1. Defaults to 'stop'.

    Weights are bad where a trainable parameter holds nan or infinity, or a buffer nan, and it did
    not at the start of the training:

    - Before a save of `AsyncCheckpointHook` nothing is read from the device. Its writer judges
      the copies; bad ones are never published, and older files and the marker stay. The run then
      ends in the next iteration, or with several processes at their next save or evaluation, in
      all at once. With 'warn' it continues, and the save has failed like any other: the last one
      of a run fails it.
    - Before a save of any other hook, which waits for the device itself, the weights are read;
      with 'warn' they are saved.
    - At an evaluation the device judges them while it evaluates; the run ends before the scores
      are logged, or choose a best checkpoint.
    - At the end of the training they are read, after the last save is durable.
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
        # Both from the start of a training until its end.
        self._scalars: Any = None
        self.weights: WeightsCheck | None = None
        self._looked_at = -1
        self._is_judging = False  # the weights, in the present evaluation
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
        watch = NonFiniteWatch(
            self.on_nonfinite, runner.logger.warning, lambda: _advice(hub, of_run())
        )
        self._scalars = ScalarBuffer(hub, watch, lambda key: _length(of_run(), least, key))
        self._looked_at = -1
        self._scalars.bound()
        for key, totals in (hub.pop_info(TOTALS) or {}).items():
            if key in hub.log_scalars:
                hub.log_scalars[key].totals = totals
        self._say_global_windows(runner)
        if self.on_nonfinite == 'skip':
            _skip_updates(runner.optim_wrapper)
        self.weights = WeightsCheck(runner, self._scalars, watch)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: dict | None = None
    ) -> None:
        scalars = self._scalars
        scalars.bound()  # first: histories that hooks have replaced get no earlier values
        for key, value in (outputs or {}).items():
            scalars.note(f'train/{key}', value)
        scalars.seal(runner.iter)
        if self._is_saved_now(runner):
            self._before_save(runner)
        assert self.weights is not None
        self.weights.poll()

    def before_val(self, runner: Any) -> None:
        super().before_val(runner)
        # Not where the training has failed, and the user evaluates by hand.
        self._is_judging = self.weights is not None and is_training(runner)
        if self._is_judging and self.weights is not None:
            self._looked_at = runner.iter
            self.weights.begin(runner)
            self.weights.stop()

    def after_val_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_judging and self.weights is not None:
            self.weights.poll()

    def after_val_epoch(self, runner: Any, metrics: dict[str, float] | None = None) -> None:
        if self._is_judging and self.weights is not None:
            self.weights.stop(wait=True)
        super().after_val_epoch(runner, metrics)

    def after_train_epoch(self, runner: Any) -> None:
        if any(hook.by_epoch for hook in self._find_savers(runner)):
            self._before_save(runner)

    def after_train(self, runner: Any) -> None:
        super().after_train(runner)
        await_saves(runner)
        self._look(runner)
        self._scalars.close()
        self._scalars = self.weights = None

    @leaves_late_parts
    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        is_copied = is_copied_now(runner)
        if self._scalars is not None:
            if not is_copied and self._looked_at != runner.iter:  # the saver is no CheckpointHook
                self._look(runner, together=False)
            self._scalars.bound()
        hub = checkpoint['message_hub']
        totals = _totals_of(runner.message_hub.log_scalars, hub['log_scalars'])
        # Values on their way from the device are waited for by the writer's thread.
        is_late = is_copied and leaves_late(runner)
        hub['runtime_info'][TOTALS] = Deferred(totals, is_of_host=True) if is_late else totals()

    def _before_save(self, runner: Any) -> None:
        """Judge the weights, unless all who save judge their copies."""
        assert self.weights is not None
        savers = self._find_savers(runner)
        if savers and all(saves_copies(hook) for hook in savers):
            self.weights.stop()
        else:
            self._look(runner)

    def _look(self, runner: Any, together: bool = True) -> None:
        """Stop before weights that are not finite are saved; waits for the device."""
        if self.weights is not None:
            self._looked_at = runner.iter
            self.weights.look(runner, together)

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


def _totals_of(live: dict[str, Any], copies: dict[str, Any]) -> Callable[[], dict[str, list]]:
    """Return a function that gives the totals at this moment, by key.

    Args:
        live: The histories.
        copies: Their copies for a checkpoint, which it waits for where they are not complete.
    """
    now = {key: one for key, one in live.items() if isinstance(one, BoundedHistory)}
    totals = {key: one.totals for key, one in now.items() if one.total > one.max_length}
    coming = {key: one for key, one in copies.items() if isinstance(one, BoundedHistory)}

    def complete() -> dict[str, list]:
        for key, copy in coming.items():
            copy.plain()  # takes in what was on its way
            if copy.total > copy.max_length:
                totals[key] = copy.totals
        return totals

    return complete


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


def _advice(hub: Any, runner: Any) -> str:
    if runner is not None:
        await_saves(runner)  # where one fails, the hub names the files before it
    saved = [hub.get_info(key) for key in ('last_ckpt', 'best_ckpt')]
    there = [path for path in saved if path and osp.isfile(path)]
    if there:
        start = f'The last checkpoint, {there[0]}, is from before: resume from it'
    elif is_main_process():
        start = 'No checkpoint has been written yet: start again'
    else:
        start = 'The log of the main process names the last checkpoint: resume from it'
    return (
        f'{start} with a lower learning rate, gradient clipping (optim_wrapper.clip_grad) or '
        "another loss scale; default_hooks.runtime_info.on_nonfinite='skip' leaves such updates "
        "out, 'warn' continues."
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
