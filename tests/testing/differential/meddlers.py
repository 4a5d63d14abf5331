"""Hooks as users write them, which read and change the parts of a training."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from typing import Any

import torch
from mmengine.hooks import CheckpointHook, Hook
from mmengine.logging import HistoryBuffer
from mmengine.registry import HOOKS
from torch.utils.data import DataLoader

from tests.testing.differential.toys import DiffDataset, digest, note


@HOOKS.register_module()
class DiffWitness(Hook):
    """Hook that notes the batch and the outputs of each iteration.

    It acts after the iteration: a hook before the iteration makes our checkpoint hook copy the
    state at once, and the usual deferred copy would not be tested.
    """

    priority = 'VERY_HIGH'

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        note('batch', runner.iter, runner.epoch, batch_idx, digest(data_batch))
        note('batch type', type(data_batch['inputs']).__name__)
        note('outputs', runner.iter, tuple(outputs), runner.optim_wrapper.get_lr())

    def after_val_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        note('val batch', batch_idx, digest(data_batch))


@HOOKS.register_module()
class DiffStop(Hook):
    """Hook that ends the training early, as EarlyStoppingHook does.

    Args:
        after: Number of iterations or epochs.
        by_epoch: Whether `after` counts epochs.
    """

    priority = 'VERY_LOW'

    def __init__(self, after: int, by_epoch: bool) -> None:
        self.after, self.by_epoch = after, by_epoch

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if not self.by_epoch and runner.iter + 1 >= self.after:
            runner.train_loop.stop_training = True

    def after_train_epoch(self, runner: Any) -> None:
        if self.by_epoch and runner.epoch + 1 >= self.after:
            runner.train_loop.stop_training = True


def first_saver(runner: Any) -> Any:
    return next(hook for hook in runner.hooks if isinstance(hook, CheckpointHook))


def _loader_of(loader: Any) -> DataLoader:
    """Return a user's plain loader over the same data, in the order of the dataset."""
    return DataLoader(DiffDataset(8), batch_size=2, collate_fn=loader.collate_fn)


def adds(hook: Any, runner: Any, checkpoint: dict) -> None:
    hook.kept = getattr(hook, 'kept', torch.zeros(2)) + 1
    checkpoint['adds'] = dict(kept=hook.kept, rows=[1, (2, None)], at=runner.iter)
    checkpoint['meta']['by'] = 'user'


def drops_state(hook: Any, runner: Any, checkpoint: dict) -> None:
    checkpoint['state_dict'].pop('net.2.bias')
    checkpoint['state_dict']['net.0.weight'] = checkpoint['state_dict']['net.0.weight'] + 1


def scale_weights(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    for parameter in runner.model.parameters():
        if parameter.requires_grad:
            parameter.data.mul_(1.001)


def reads_history(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    scalars = runner.message_hub.log_scalars
    if 'train/loss' in scalars:
        history = runner.message_hub.get_scalar('train/loss')
        values, counts = history.data
        note('history', round(history.current(), 5), round(float(history.mean(3)), 5), len(values))
        note('history', int(counts.sum()), round(float(history.min(2)), 5), sorted(scalars))


def own_scalars(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    hub = runner.message_hub
    hub.update_scalar('train/mine', 0.5 * runner.iter)
    hub.update_scalars(dict(other=torch.tensor(2.0), several=dict(value=6.0, count=3)))
    hub.update_scalar('train/temporary', 1, resumed=False)


def own_info(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    hub = runner.message_hub
    hub.update_info('mine', dict(iteration=runner.iter, kept=[1, 2]))
    hub.update_info('mine_not_resumed', runner.iter, resumed=False)


def changes_lr(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    for group in runner.optim_wrapper.param_groups:
        group['lr'] = group['lr'] * 0.9


def edits_batch(
    hook: Any, runner: Any, batch_idx: int, data_batch: Any = None, **kwargs: Any
) -> None:
    inputs = data_batch['inputs']
    data_batch['inputs'] = inputs * 2 if torch.is_tensor(inputs) else [one * 2 for one in inputs]


def stops_early(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter >= 6:
        runner.train_loop.stop_training = True


def reads_length(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    loader = runner.train_dataloader
    note('length', len(loader), len(loader.dataset), loader.batch_size, loader.num_workers)
    note('loader', loader.drop_last, type(loader.dataset).__name__, runner.max_iters)


def own_visuals(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    runner.visualizer.add_scalar('visual/own', 0.5, step=runner.iter)


def saves_by_hand(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        runner.save_checkpoint(runner.work_dir, 'by_hand.pth', by_epoch=False)


def evaluates(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        note('by hand', runner.val_loop.run())
        runner.model.train()


def zeroes_momentum(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    for state in runner.optim_wrapper.optimizer.state.values():
        for value in state.values():
            if torch.is_tensor(value) and value.dim():
                value.zero_()


def last_to_train_iter(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    is_end = hook.end_of_epoch(runner.train_dataloader, runner.iter % 4)
    note('ends', hook.is_last_train_iter(runner), is_end)


def reads_loader(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    note('read', [digest(batch) for batch, _ in zip(runner.train_dataloader, range(9))])


def next_batch(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    note('next', digest(next(iter(runner.train_dataloader))))


def next_in_training(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        next_batch(hook, runner)


def next_in_val(hook: Any, runner: Any, batch_idx: int, *args: Any, **kwargs: Any) -> None:
    if batch_idx == 1:
        note('next', digest(next(iter(runner.val_dataloader))))


def replaces_loader(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if getattr(hook, 'done', False) or runner.iter < 3:
        return
    hook.done, loop = True, runner.train_loop
    loop.dataloader = _loader_of(loop.dataloader)


def replaces_iterator(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    loop = runner.train_loop
    if runner.iter == 3 and hasattr(loop, 'dataloader_iterator'):
        loop.dataloader_iterator = iter([*_loader_of(loop.dataloader)] * 9)


def changes_dataset(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    runner.train_dataloader.dataset.shift = 0.25 * runner.iter


def sets_epoch(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    runner.train_dataloader.dataset.set_epoch(runner.epoch)


def uploads(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Look for the newest files, as a hook that uploads them does."""
    for key in ('last_ckpt', 'best_ckpt'):
        path = runner.message_hub.get_info(key)
        if path:
            note('upload', os.path.basename(path), os.path.isfile(path))


def loads_last(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    path = runner.message_hub.get_info('last_ckpt')
    if path and runner.iter >= 4:
        note('loaded', torch.load(path, weights_only=False)['meta']['iter'])


def copies_hub(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    hub = copy.deepcopy(runner.message_hub)
    pickle.dumps(runner.message_hub.state_dict())
    note('copied', list(hub.log_scalars))


def pickles_optimizer(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        note('pickled', len(copy.deepcopy(runner.optim_wrapper).param_groups))


def copies_schedules(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        note('schedules', len(copy.deepcopy(runner.param_schedulers)))


def replaces_history(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        runner.message_hub.log_scalars['train/loss'] = HistoryBuffer([1.0, 2.0], [1, 1])


def pops_history(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        runner.message_hub.log_scalars.pop('train/loss_a', None)


def clears_histories(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        runner.message_hub.log_scalars.clear()


def wraps_checkpoint(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Replace the checkpoint hook by a wrapper that calls it."""
    saver = first_saver(runner)
    runner._hooks = [DiffWrapper(one) if one is saver else one for one in runner.hooks]


def calls_checkpoint(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        first_saver(runner)._save_checkpoint(runner)


def changes_folder(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    if runner.iter == 4:
        os.makedirs('elsewhere', exist_ok=True)
        os.chdir('elsewhere')


def asks_loader_type(hook: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    note('is a DataLoader', isinstance(runner.train_dataloader, DataLoader))


class DiffWrapper(Hook):
    """Hook that calls another hook at each stage."""

    def __init__(self, inner: Hook) -> None:
        self.inner, self.priority = inner, inner.priority

    def __getattribute__(self, name: str) -> Any:
        if name in Hook.stages or name == 'get_triggered_stages':
            return getattr(object.__getattribute__(self, 'inner'), name)
        return object.__getattribute__(self, name)


# By name of the hook: its stage, its priority and its function.
MEDDLERS: dict[str, tuple[str, str, Callable]] = dict(
    adds=('before_save_checkpoint', 'NORMAL', adds),
    drops_state=('before_save_checkpoint', 'NORMAL', drops_state),
    weights_before_iter=('before_train_iter', 'NORMAL', scale_weights),
    weights_after_iter=('after_train_iter', 'NORMAL', scale_weights),
    weights_after_val=('after_val_epoch', 'NORMAL', scale_weights),
    weights_at_save=('after_train_iter', 'LOWEST', scale_weights),
    reads_history=('after_train_iter', 'NORMAL', reads_history),
    own_scalars=('after_train_iter', 'NORMAL', own_scalars),
    own_info=('after_train_iter', 'NORMAL', own_info),
    changes_lr=('after_train_iter', 'NORMAL', changes_lr),
    edits_batch=('before_train_iter', 'NORMAL', edits_batch),
    stops_early=('after_train_iter', 'NORMAL', stops_early),
    reads_length=('before_train_epoch', 'NORMAL', reads_length),
    own_visuals=('after_train_iter', 'NORMAL', own_visuals),
    saves_by_hand=('after_train_iter', 'NORMAL', saves_by_hand),
    evaluates=('after_train_iter', 'LOW', evaluates),
    zeroes_momentum=('after_train_iter', 'NORMAL', zeroes_momentum),
    last_to_train_iter=('after_train_iter', 'NORMAL', last_to_train_iter),
    reads_loader=('after_train_epoch', 'NORMAL', reads_loader),
    next_before_train=('before_train', 'NORMAL', next_batch),
    next_in_training=('after_train_iter', 'NORMAL', next_in_training),
    next_in_val=('after_val_iter', 'NORMAL', next_in_val),
    replaces_loader=('before_train_epoch', 'NORMAL', replaces_loader),
    replaces_iterator=('after_train_iter', 'NORMAL', replaces_iterator),
    changes_dataset=('before_train_epoch', 'NORMAL', changes_dataset),
    sets_epoch=('before_train_epoch', 'NORMAL', sets_epoch),
    uploads=('after_train_iter', 'LOWEST', uploads),
    loads_last=('after_train_iter', 'LOWEST', loads_last),
    copies_hub=('after_train_iter', 'NORMAL', copies_hub),
    pickles_optimizer=('after_train_iter', 'NORMAL', pickles_optimizer),
    copies_schedules=('after_train_iter', 'NORMAL', copies_schedules),
    replaces_history=('after_train_iter', 'NORMAL', replaces_history),
    pops_history=('after_train_iter', 'NORMAL', pops_history),
    clears_histories=('before_train_iter', 'NORMAL', clears_histories),
    wraps_checkpoint=('before_run', 'LOWEST', wraps_checkpoint),
    calls_checkpoint=('after_train_iter', 'LOWEST', calls_checkpoint),
    changes_folder=('after_train_iter', 'NORMAL', changes_folder),
    asks_loader_type=('before_train', 'NORMAL', asks_loader_type),
)


def _register(name: str, stage: str, priority: str, act: Callable) -> None:
    def call(self: Hook, runner: Any, *args: Any, **kwargs: Any) -> None:
        act(self, runner, *args, **kwargs)

    kind = type(f'Diff_{name}', (Hook,), {stage: call, 'priority': priority})
    HOOKS.register_module(module=kind)


for _name, _parts in MEDDLERS.items():
    _register(_name, *_parts)
