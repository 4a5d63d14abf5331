"""Change any mm-style config to follow a policy, and return the changes."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from mmengine.registry import LOOPS, METRICS
from mmseg.evaluation import IoUMetric

from mmtempo.optim import SparseAmpOptimWrapper, SparseOptimWrapper

from .drop_in import KEPT, PACKAGE, ConfigChange, class_of, optim_wrapper_class, zero_wait
from .editor import Editor
from .policy import KEY, is_policy_key
from .schedule import Rescaling, rescale_schedulers, warm_up_of
from .transforms import exchange_transforms
from .workload import Workload

FUSED = ('Adam', 'AdamW', 'SGD', 'Adagrad')  # optimizers with a fused form in torch
TUNING = 'ModelTuningHook'
STREAMING = 'StreamingIoUMetric'


def apply_policy(
    cfg: Config, policy: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> list[ConfigChange]:
    """Change a config in place so that it follows a policy.

    ::

        stock parts -> ours     batch, accumulation -> learning rate, schedule, intervals
                                precision, loader, model, retention

    Args:
        cfg: The complete config of a training.
        policy: The policy, from `load_policy`.
        options: Entries of --cfg-options. They take precedence: their values are merged first,
            are kept, and the policy scales from them. Defaults to None.

    Returns:
        The changes, and the keys that were left alone with the reason.

    Raises:
        ValueError: If the config already follows a policy.
    """
    options = {key: value for key, value in (options or {}).items() if not is_policy_key(key)}
    _check_is_first(cfg, policy)
    before = Workload.of(cfg)
    replaced = zero_wait(cfg, keep=options)
    cfg.merge_from_dict(dict(options))
    if policy['data'].get('fast_transforms'):
        replaced += exchange_transforms(cfg, keep=options)
    editor = Editor(cfg, options)
    _set_batch(editor, policy, before)
    after = Workload.of(cfg)
    _scale_lr(editor, policy, before, after)
    _scale_length(editor, policy, before, after)
    _set_precision(editor, policy)
    _set_loader(editor, policy)
    _tune(editor, policy)
    _evaluate(editor)
    if editor.get('default_hooks.checkpoint') and not editor.get(
        'default_hooks.checkpoint.max_keep_ckpts'
    ):
        keep = policy['keep_checkpoints']
        editor.set('default_hooks.checkpoint.max_keep_ckpts', keep, 'older checkpoints are deleted')
    cfg[KEY] = dict(policy)
    return [*replaced, *editor.changes]


def _check_is_first(cfg: Config, policy: Mapping[str, Any]) -> None:
    """Raise if a policy was applied: another would scale a second time."""
    applied = (cfg.get(KEY) or {}).get('policy')
    if applied is not None:
        raise ValueError(
            f'--tempo {policy["policy"]}: {cfg.filename or "the config"} already follows the '
            f'policy {applied!r}; use --tempo with the config that it was made from'
        )


def _set_batch(editor: Editor, policy: Mapping[str, Any], before: Workload) -> None:
    """Set the samples of a batch and the batches of an update."""
    if before.batch is None:
        editor.leave('train_dataloader.batch_size', _why_batch_is_unknown(editor))
    else:
        key, why = 'train_dataloader.batch_size', f'{policy["batch"]:g} x the batch of the config'
        batch = max(1, math.floor(before.batch * policy['batch']))
        if batch == before.batch and policy['batch'] != 1 and not editor.is_kept(key):
            editor.leave(key, f'{why}, rounded down, is the same')
        editor.set(key, batch, why)
    count = policy['accumulate']
    key = 'optim_wrapper.accumulative_counts'
    if count == 1:
        return
    if before.accumulation > 1:
        editor.leave(key, 'is unchanged, since the config already accumulates')
    elif not _has_our_wrapper(editor.cfg):
        editor.leave('optim_wrapper', 'is not a stock type; accumulation is left alone')
    else:
        editor.set(key, count, f'{count} batches per update')
        if _has_our_loop(editor.cfg):
            why = 'schedules, logs, averages and checkpoints count updates, as with a large batch'
            editor.set('train_cfg.count', 'updates', why)
        else:
            editor.leave('train_cfg', 'is not a loop of mmtempo; an iteration stays a batch')


def _why_batch_is_unknown(editor: Editor) -> str:
    reason = 'is not set'
    if editor.get('train_dataloader.batch_sampler') is not None:
        reason = 'is chosen by batch_sampler'
    return f'{reason}; batch, learning rate and schedule are left alone'


def _scale_lr(editor: Editor, policy: Mapping[str, Any], before: Workload, after: Workload) -> None:
    """Scale the learning rate with the samples of an update."""
    old, new = before.samples_per_update, after.samples_per_update
    if old is None or new is None or new == old:
        return
    ratio = new / old
    samples = f'{old} -> {new} samples per update'
    base = editor.get('auto_scale_lr.base_batch_size')
    if base:
        # The scaled rate is for this number: --auto-scale-lr must not scale a second time.
        scaled = base * ratio
        scaled = int(scaled) if scaled == int(scaled) else scaled
        editor.set('auto_scale_lr.base_batch_size', scaled, samples)
    key, rule = 'optim_wrapper.optimizer.lr', policy['lr']
    lr = editor.get(key)
    if rule == 'keep':
        editor.leave(key, f'is kept by {KEY}.lr=keep, with {samples}')
    elif not isinstance(lr, (int, float)):
        editor.leave('optim_wrapper', f'has no number at {key}; not scaled, with {samples}')
    else:
        factor = ratio if rule == 'linear' else math.sqrt(ratio)
        editor.set(key, _rounded(lr * factor), f'{samples}, {rule}')


def _rounded(value: float) -> float:
    """Round a value as a person would write it: 3e-4 instead of 0.00030000000000000003."""
    return float(f'{value:.12g}')


def _scale_length(
    editor: Editor, policy: Mapping[str, Any], before: Workload, after: Workload
) -> None:
    """Scale the length, schedules and intervals that count iterations."""
    old, new = before.samples_per_iteration, after.samples_per_iteration
    ratio = 1.0
    if policy['length'] == 'samples' and old and new:
        ratio = old / new
    last = editor.get('train_cfg.max_iters')
    val_interval = _val_interval(editor, policy, ratio)
    if ratio != 1:
        why = f'{old} -> {new} samples per iteration'
        by = Rescaling(ratio, warm_up_of(editor.get('param_scheduler'), last or sys.maxsize))
        if last:
            editor.set('train_cfg.max_iters', by.end(last), f'{why}, the same number in total')
        rescale_schedulers(editor, by, why)
        _rescale_intervals(editor, by, why)
    elif old != new and last:
        editor.leave('train_cfg.max_iters', f'is kept by {KEY}.length=iterations')
    if val_interval is not None:
        why = f'{policy["evaluate_every"]:g} x the samples between evaluations'
        editor.set('train_cfg.val_interval', val_interval, why)


def _val_interval(editor: Editor, policy: Mapping[str, Any], ratio: float) -> int | None:
    """Return the new interval of evaluations, which stop the training; None to leave it alone."""
    interval = editor.get('train_cfg.val_interval', 1)
    if not isinstance(interval, int) or not editor.get('val_cfg'):
        return None
    last = editor.get('train_cfg.max_iters')
    by_epoch, last = last is None, last or editor.get('train_cfg.max_epochs')
    if last is None or interval > last:  # so that there is no evaluation
        return None
    scaled = round(min(interval * policy['evaluate_every'], last) * (1 if by_epoch else ratio))
    return max(1, scaled)


def _rescale_intervals(editor: Editor, by: Rescaling, why: str) -> None:
    """Scale the interval of checkpoints; report those of custom hooks, whose meaning is unknown."""
    saves = editor.get('default_hooks.checkpoint') or {}
    if saves.get('interval', -1) > 0 and not saves.get('by_epoch', True):
        key = 'default_hooks.checkpoint.interval'
        editor.set(key, by.length(saves['interval']), why)
    for number, hook in enumerate(editor.get('custom_hooks') or ()):
        if isinstance(hook, Mapping) and hook.get('interval', 0) > 1 and not hook.get('by_epoch'):
            editor.leave(f'custom_hooks.{number}.interval', f'is left to its hook, with {why}')


def _set_precision(editor: Editor, policy: Mapping[str, Any]) -> None:
    """Set mixed precision, and the fused form of the optimizer."""
    cls = optim_wrapper_class(editor.cfg)
    amp = policy['amp']
    if cls is SparseAmpOptimWrapper:
        editor.leave('optim_wrapper.type', 'already has mixed precision')
    elif amp is not None and cls is SparseOptimWrapper:
        editor.set('optim_wrapper.type', 'SparseAmpOptimWrapper', 'mixed precision')
        for key, value in amp.items():
            editor.set(f'optim_wrapper.{key}', value, 'mixed precision')
    elif amp is not None:
        editor.leave('optim_wrapper', 'is not a stock type; precision is left alone')
    optimizer = editor.get('optim_wrapper.optimizer') or {}
    if policy['fused'] and _can_be_fused(optimizer):
        editor.set('optim_wrapper.optimizer.fused', True, 'one kernel per update')


def _can_be_fused(optimizer: Any) -> bool:
    if not isinstance(optimizer, Mapping) or optimizer.get('type') not in FUSED:
        return False
    others = ('fused', 'foreach', 'differentiable', 'capturable')
    return not any(key in optimizer for key in others)


def _set_loader(editor: Editor, policy: Mapping[str, Any]) -> None:
    """Set the options of the data loader, and cuDNN's search for fast kernels."""
    if not editor.get('train_dataloader'):
        return
    if not _has_our_loop(editor.cfg):
        editor.leave(
            'train_dataloader.num_workers', 'is left alone; train_cfg is not a loop of mmtempo'
        )
        return
    workers = 'train_dataloader.num_workers'
    has_none = editor.is_kept(workers) and editor.get(workers) == 0
    for key, value in policy['loader'].items():
        if has_none and key in ('prefetch_factor', 'persistent_workers'):
            editor.leave(f'train_dataloader.{key}', 'has no effect without workers')
        else:
            editor.set(f'train_dataloader.{key}', value, 'loads batches ahead of the training')
    if policy['cudnn_benchmark'] != editor.get('env_cfg.cudnn_benchmark', False):
        why = 'crops have one size, so the fastest kernels are searched for once'
        if not policy['cudnn_benchmark']:
            why = 'the search for kernels takes memory'
        editor.set('env_cfg.cudnn_benchmark', policy['cudnn_benchmark'], why)


def _tune(editor: Editor, policy: Mapping[str, Any]) -> None:
    """Add a hook for the changes of the model that no key of a stock config can make."""
    options = {key: value for key, value in policy['tune'].items() if value}
    if not options:
        return
    hooks = list(editor.get('custom_hooks') or [])
    if any(isinstance(hook, Mapping) and hook.get('type') == TUNING for hook in hooks):
        editor.leave('custom_hooks', f'already has a {TUNING}')
        return
    if editor.is_kept('custom_hooks'):
        editor.leave('custom_hooks', KEPT)
        return
    editor.cfg['custom_hooks'] = [*hooks, dict(type=TUNING, **options)]
    shown = ', '.join(f'{key}={value!r}' for key, value in options.items())
    editor.changes.append(ConfigChange(f'custom_hooks.{len(hooks)}', None, TUNING, shown))


def _evaluate(editor: Editor) -> None:
    """Replace the IoU metric, so that memory does not grow with the validation set."""
    for key in ('val_evaluator', 'test_evaluator'):
        value = editor.get(key)
        several = isinstance(value, (list, tuple))
        for number, metric in enumerate(value if several else [value]):
            if class_of(editor.cfg, METRICS, metric) is IoUMetric:
                type_key = f'{key}.{number}.type' if several else f'{key}.type'
                editor.set(type_key, STREAMING, 'one sum instead of four histograms per image')


def _has_our_loop(cfg: Config) -> bool:
    cls = class_of(cfg, LOOPS, cfg.get('train_cfg'))
    return getattr(cls, '__module__', '').partition('.')[0] == PACKAGE


def _has_our_wrapper(cfg: Config) -> bool:
    return optim_wrapper_class(cfg) in (SparseOptimWrapper, SparseAmpOptimWrapper)
