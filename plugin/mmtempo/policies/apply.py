"""Makes any mm-style config follow a policy, and says what that has changed."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from mmengine.registry import LOOPS, METRICS
from mmseg.evaluation import IoUMetric

from mmtempo.optim import SparseAmpOptimWrapper, SparseOptimWrapper

from .drop_in import PACKAGE, ConfigChange, class_of, optim_wrapper_class, zero_wait
from .editor import Editor
from .policy import KEY, of_policy
from .schedule import Rescaling, rescale_schedulers, warm_up_of
from .workload import Workload

FUSED = ('Adam', 'AdamW', 'SGD', 'Adagrad')  # of which torch has a fused form
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
        policy: As `load_policy` gives it.
        options: Of --cfg-options: they are merged in between, and win. Defaults to None.

    Returns:
        What was changed, and what was left alone and why.

    Raises:
        ValueError: If the config follows a policy already.
    """
    options = {key: value for key, value in (options or {}).items() if not of_policy(key)}
    _check_is_first(cfg, policy)
    before = Workload.of(cfg)
    exchanged = zero_wait(cfg, keep=options)
    cfg.merge_from_dict(dict(options))
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
        editor.set('default_hooks.checkpoint.max_keep_ckpts', keep, 'older files are removed')
    cfg[KEY] = dict(policy)
    return [*exchanged, *editor.changes]


def _check_is_first(cfg: Config, policy: Mapping[str, Any]) -> None:
    """A policy is relative to the config: of two, the second would scale what is scaled."""
    found = (cfg.get(KEY) or {}).get('policy')
    if found is not None:
        raise ValueError(
            f'--tempo {policy["policy"]}: {cfg.filename or "the config"} follows the policy '
            f'{found!r} already; give --tempo with the config that it was made from'
        )


def _set_batch(editor: Editor, policy: Mapping[str, Any], before: Workload) -> None:
    """Samples at once, and batches to an update."""
    if before.batch is None:
        editor.leave('train_dataloader.batch_size', _why_no_batch(editor))
    else:
        key, why = 'train_dataloader.batch_size', f'{policy["batch"]:g} x the batch'
        batch = max(1, math.floor(before.batch * policy['batch']))
        if batch == before.batch and policy['batch'] != 1 and not editor.is_kept(key):
            editor.leave(key, f'{why} is no whole number more')
        editor.set(key, batch, why)
    count = policy['accumulate']
    key = 'optim_wrapper.accumulative_counts'
    if count == 1:
        return
    if before.accumulation > 1:
        editor.leave(key, 'the config accumulates already')
    elif not _has_our_wrapper(editor.cfg):
        editor.leave('optim_wrapper', 'is no stock type: how it accumulates is its own')
    else:
        editor.set(key, count, f'{count} batches to an update')
        if _has_our_loop(editor.cfg):
            why = 'schedules, logs, averages and checkpoints go by updates, as with a large batch'
            editor.set('train_cfg.count', 'updates', why)
        else:
            editor.leave('train_cfg', 'is no loop of ours: an iteration stays a batch')


def _why_no_batch(editor: Editor) -> str:
    if editor.get('train_dataloader.batch_sampler') is not None:
        return 'batch_sampler decides it: batch, learning rate and schedule stay'
    return 'the config does not say it: batch, learning rate and schedule stay'


def _scale_lr(editor: Editor, policy: Mapping[str, Any], before: Workload, after: Workload) -> None:
    """With the samples of an update."""
    if before.of_update is None or after.of_update is None or after.of_update == before.of_update:
        return
    ratio = after.of_update / before.of_update
    samples = f'{before.of_update} -> {after.of_update} samples an update'
    base = editor.get('auto_scale_lr.base_batch_size')
    if base:
        # The rate below is for that many: --auto-scale-lr, which starts there, scales no second
        # time.
        scaled = base * ratio
        scaled = int(scaled) if scaled == int(scaled) else scaled
        editor.set('auto_scale_lr.base_batch_size', scaled, samples)
    key, rule = 'optim_wrapper.optimizer.lr', policy['lr']
    lr = editor.get(key)
    if rule == 'keep':
        editor.leave(key, f'{KEY}.lr=keep, although {samples}')
    elif not isinstance(lr, (int, float)):
        editor.leave('optim_wrapper', f'no learning rate was found at {key}, although {samples}')
    else:
        factor = ratio if rule == 'linear' else math.sqrt(ratio)
        editor.set(key, _rounded(lr * factor), f'{samples}, {rule}')


def _rounded(value: float) -> float:
    """3e-4, and not 0.00030000000000000003."""
    return float(f'{value:.12g}')


def _scale_length(
    editor: Editor, policy: Mapping[str, Any], before: Workload, after: Workload
) -> None:
    """Schedules and intervals that count iterations."""
    ratio = 1.0
    if policy['length'] == 'samples' and before.of_iteration and after.of_iteration:
        ratio = before.of_iteration / after.of_iteration
    last = editor.get('train_cfg.max_iters')
    wanted = _val_interval(editor, policy, ratio)
    if ratio != 1:
        why = f'{before.of_iteration} -> {after.of_iteration} samples an iteration'
        by = Rescaling(ratio, warm_up_of(editor.get('param_scheduler'), last or sys.maxsize))
        if last:
            editor.set('train_cfg.max_iters', by.end(last), f'{why}: the same samples in all')
        rescale_schedulers(editor, by, why)
        _rescale_intervals(editor, by, why)
    elif before.of_iteration != after.of_iteration and last:
        editor.leave('train_cfg.max_iters', f'{KEY}.length=iterations')
    if wanted is not None:
        why = f'{policy["evaluate_every"]:g} x as many samples in between'
        editor.set('train_cfg.val_interval', wanted, why)


def _val_interval(editor: Editor, policy: Mapping[str, Any], ratio: float) -> int | None:
    """An evaluation stops the training; how often is up to the policy. None: not at all."""
    interval = editor.get('train_cfg.val_interval', 1)
    if not isinstance(interval, int) or not editor.get('val_cfg'):
        return None
    last = editor.get('train_cfg.max_iters')
    by_epoch, last = last is None, last or editor.get('train_cfg.max_epochs')
    if last is None or interval > last:  # meant as never
        return None
    wanted = round(min(interval * policy['evaluate_every'], last) * (1 if by_epoch else ratio))
    return max(1, wanted)


def _rescale_intervals(editor: Editor, by: Rescaling, why: str) -> None:
    saves = editor.get('default_hooks.checkpoint') or {}
    if saves.get('interval', -1) > 0 and not saves.get('by_epoch', True):
        key = 'default_hooks.checkpoint.interval'
        editor.set(key, by.length(saves['interval']), why)
    for number, hook in enumerate(editor.get('custom_hooks') or ()):
        if isinstance(hook, Mapping) and hook.get('interval', 0) > 1 and not hook.get('by_epoch'):
            editor.leave(f'custom_hooks.{number}.interval', f'is its own, although {why}')


def _set_precision(editor: Editor, policy: Mapping[str, Any]) -> None:
    cls = optim_wrapper_class(editor.cfg)
    amp = policy['amp']
    if cls is SparseAmpOptimWrapper:
        editor.leave('optim_wrapper.type', 'the config has mixed precision of its own')
    elif amp is not None and cls is SparseOptimWrapper:
        editor.set('optim_wrapper.type', 'SparseAmpOptimWrapper', 'mixed precision')
        for key, value in amp.items():
            editor.set(f'optim_wrapper.{key}', value, 'of the mixed precision')
    elif amp is not None:
        editor.leave('optim_wrapper', 'is no stock type: its precision is its own')
    optimizer = editor.get('optim_wrapper.optimizer') or {}
    if policy['fused'] and _can_be_fused(optimizer):
        editor.set('optim_wrapper.optimizer.fused', True, 'one kernel an update')


def _can_be_fused(optimizer: Any) -> bool:
    if not isinstance(optimizer, Mapping) or optimizer.get('type') not in FUSED:
        return False
    others = ('fused', 'foreach', 'differentiable', 'capturable')
    return not any(key in optimizer for key in others)


def _set_loader(editor: Editor, policy: Mapping[str, Any]) -> None:
    if not editor.get('train_dataloader'):
        return
    if not _has_our_loop(editor.cfg):
        editor.leave('train_dataloader.num_workers', 'train_cfg is no loop of ours')
        return
    workers = 'train_dataloader.num_workers'
    has_none = editor.is_kept(workers) and editor.get(workers) == 0
    for key, value in policy['loader'].items():
        if has_none and key in ('prefetch_factor', 'persistent_workers'):
            editor.leave(f'train_dataloader.{key}', 'is of no use without workers')
        else:
            editor.set(f'train_dataloader.{key}', value, 'the training waits for no batch')
    if policy['cudnn_benchmark'] != editor.get('env_cfg.cudnn_benchmark', False):
        why = 'one size of crops: search for the fastest kernels once'
        if not policy['cudnn_benchmark']:
            why = 'its search takes memory'
        editor.set('env_cfg.cudnn_benchmark', policy['cudnn_benchmark'], why)


def _tune(editor: Editor, policy: Mapping[str, Any]) -> None:
    """What no key of a stock config can do to a model is done by a hook."""
    wanted = {key: value for key, value in policy['tune'].items() if value}
    if not wanted:
        return
    hooks = list(editor.get('custom_hooks') or [])
    if any(isinstance(hook, Mapping) and hook.get('type') == TUNING for hook in hooks):
        editor.leave('custom_hooks', f'the config has a {TUNING} of its own')
        return
    if editor.is_kept('custom_hooks'):
        editor.leave('custom_hooks', 'is kept as --cfg-options has it')
        return
    editor.cfg['custom_hooks'] = [*hooks, dict(type=TUNING, **wanted)]
    what = ', '.join(f'{key}={value!r}' for key, value in wanted.items())
    editor.changes.append(ConfigChange(f'custom_hooks.{len(hooks)}', None, TUNING, what))


def _evaluate(editor: Editor) -> None:
    """Memory of an evaluation that does not grow with the validation set."""
    for key in ('val_evaluator', 'test_evaluator'):
        value = editor.get(key)
        several = isinstance(value, (list, tuple))
        for number, metric in enumerate(value if several else [value]):
            if class_of(editor.cfg, METRICS, metric) is IoUMetric:
                place = f'{key}.{number}.type' if several else f'{key}.type'
                editor.set(place, STREAMING, 'one sum instead of four histograms an image')


def _has_our_loop(cfg: Config) -> bool:
    cls = class_of(cfg, LOOPS, cfg.get('train_cfg'))
    return getattr(cls, '__module__', '').partition('.')[0] == PACKAGE


def _has_our_wrapper(cfg: Config) -> bool:
    return optim_wrapper_class(cfg) in (SparseOptimWrapper, SparseAmpOptimWrapper)
