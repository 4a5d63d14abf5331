"""Configs of a case, with stock parts or with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch.utils.data import BatchSampler

from mmtempo.replacements import BY_NAME
from tests.testing.differential.cases import Case, completed
from tests.testing.differential.meddlers import MEDDLERS

# stock: stock parts and stock's loading of files. imported: stock parts after `import mmtempo`.
# ours: our hooks and wrapper with stock's loops. loops: ours, and our loops.
ARMS = ('stock', 'imported', 'ours', 'loops')
LOOP_KEYS = ('train_cfg', 'val_cfg')
NAMES = {**BY_NAME, 'DiffAmpOptimWrapper': 'SparseAmpOptimWrapper'}

WINDOWS: dict[str, list[dict]] = dict(
    some=[
        dict(data_src='loss', log_name='loss_mean', method_name='mean', window_size=4),
        dict(data_src='loss_b', log_name='worst', method_name='max', window_size=3),
    ],
    epoch=[
        dict(data_src='loss_a', log_name='epoch_mean', method_name='mean', window_size='epoch'),
        dict(data_src='loss_a', log_name='epoch_max', method_name='max', window_size='epoch'),
    ],
    all=[
        dict(data_src='loss', log_name='all', method_name='mean', window_size='global'),
        dict(data_src='loss_a', log_name='lowest', method_name='min', window_size='global'),
    ],
    registered=[dict(data_src='loss', log_name='spread', method_name='diff_spread', window_size=3)],
)
WINDOWS['global'] = WINDOWS.pop('all')


def config_of(case: Case, arm: str, root: Path) -> Config:
    """Return the config of a case.

    Args:
        case: Case of the training.
        arm: One of `ARMS`.
        root: Folder of its work dir and of its other folders.
    """
    full = completed(case)
    by_epochs = full['loop'] == 'epoch'
    cfg = dict(
        model=dict(
            type='DiffModel', outputs=full['outputs'], state=full['state'],
            lists_only=full['data'] == 'lists', dropout=full['dropout'],
        ),
        work_dir=str(root / 'work'),
        experiment_name='toy',
        train_dataloader=_train_loader(full),
        train_cfg=_train_cfg(full),
        optim_wrapper=_optim(full),
        param_scheduler=_schedule(full['schedule'], by_epochs),
        default_hooks=_default_hooks(full, root),
        custom_hooks=_custom_hooks(full, root),
        log_processor=dict(
            by_epoch=by_epochs, window_size=full['window'], num_digits=full['digits'],
            log_with_hierarchy=full['hierarchy'], custom_cfg=WINDOWS.get(full['windows']),
        ),
        visualizer=dict(type='Visualizer', name='toy', vis_backends=_backends(full['backends'])),
        randomness=dict(seed=5),
        default_scope='mmengine',
        launcher='none',
    )  # fmt: skip
    if full['val'] is not None:
        cfg['val_dataloader'] = dict(
            batch_size=4, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
            dataset=_dataset(full, samples=6),
        )  # fmt: skip
        cfg.update(val_cfg=dict(type='ValLoop'), val_evaluator=dict(type='DiffMetric'))
    if arm in ('ours', 'loops'):
        for key in ('default_hooks', 'custom_hooks', 'optim_wrapper'):
            _exchange(cfg[key])
        cfg['default_hooks']['runtime_info']['history_length'] = full['history']
    if arm == 'loops':
        for key in LOOP_KEYS:
            _exchange(cfg.get(key))
    return Config(cfg)


def _exchange(node: Any) -> None:
    """Replace the types of stock parts by ours, in place."""
    if isinstance(node, dict):
        node['type'] = NAMES.get(node.get('type'), node.get('type'))
        if node['type'] is None:
            del node['type']
    for child in node.values() if isinstance(node, dict) else node or ():
        if isinstance(child, (dict, list)):
            _exchange(child)


def _dataset(full: Case, samples: int) -> dict:
    with_samples = full['data'] != 'plain'
    return dict(
        type='DiffDataset', samples=samples, with_samples=with_samples, metainfo=full['metainfo']
    )


def _train_loader(full: Case) -> dict:
    kinds = dict(infinite='InfiniteSampler', default='DefaultSampler')
    kind = 'DefaultSampler' if full['loop'] == 'epoch' else kinds.get(full['sampler'])
    loader: dict[str, Any] = dict(
        num_workers=full['workers'],
        dataset=_dataset(full, full['samples']),
        sampler=dict(type=kind, shuffle=full['shuffle']) if full['sampler'] else None,
        batch_size=full['batch_size'],
        drop_last=full['drop_last'],
    )
    if full['workers']:
        loader['persistent_workers'] = full['persistent']
    if full['batch_sampler'] is not None:
        loader['batch_sampler'] = dict(type='GrowingBatchSampler')
        if full['batch_sampler'] == 'plain':
            loader['batch_sampler'] = dict(type=BatchSampler, drop_last=full['drop_last'])
        del loader['drop_last']  # torch takes it without a batch sampler only
    if full['batches_per_epoch'] is not None:
        loader['num_batch_per_epoch'] = full['batches_per_epoch']
    return loader


def _train_cfg(full: Case) -> dict:
    if full['loop'] == 'epoch':
        cfg = dict(type='EpochBasedTrainLoop', max_epochs=full['epochs'])
    else:
        cfg = dict(type='IterBasedTrainLoop', max_iters=full['iters'])
    cfg.update(val_interval=full['val'] or 100, val_begin=full['val_begin'])
    if full['dynamic']:
        cfg['dynamic_intervals'] = [tuple(part) for part in full['dynamic']]
    return cfg


def _optim(full: Case) -> dict:
    optimizers = dict(
        sgd=dict(type='SGD', lr=0.02, momentum=0.9),
        plain_sgd=dict(type='SGD', lr=0.02),
        nesterov=dict(type='SGD', lr=0.02, momentum=0.8, nesterov=True, weight_decay=0.01),
        adamw=dict(type='AdamW', lr=0.01),
        amsgrad=dict(type='Adam', lr=0.01, amsgrad=True, weight_decay=0.01),
    )
    optim = dict(type='OptimWrapper', optimizer=optimizers[full['optimizer']])
    if full['amp'] is not None:
        scale = dict(init_scale=2.0**10, growth_interval=3)
        optim.update(type='DiffAmpOptimWrapper', dtype=full['amp'], loss_scale=scale)
    if full['accumulate'] > 1:
        optim['accumulative_counts'] = full['accumulate']
    clips = dict(norm=dict(max_norm=0.5), value=dict(clip_value=0.1, type='value'))
    if full['clip'] is not None:
        optim['clip_grad'] = clips[full['clip']]
    if full['groups']:
        optim['optimizer'].setdefault('weight_decay', 0.02)  # stock's decay_mult needs one
        keys = {'net.0': dict(lr_mult=0.5, decay_mult=0.0), 'net.1': dict(lr_mult=2.0)}
        optim['paramwise_cfg'] = dict(custom_keys=keys, bias_lr_mult=1.5, bypass_duplicate=True)
    return optim


def _schedule(kind: str | None, by_epochs: bool) -> Any:
    end = 3 if by_epochs else 11
    known: dict[Any, Any] = {
        None: None,
        'linear_cosine': [
            dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=4),
            dict(type='CosineAnnealingLR', T_max=8, by_epoch=False, begin=4, end=12),
        ],
        'poly': dict(type='PolyLR', power=0.9, by_epoch=by_epochs, end=end),
        'multistep': [dict(type='MultiStepLR', milestones=[1, 2], gamma=0.5, by_epoch=by_epochs)],
        'converted': [
            dict(type='CosineAnnealingLR', T_max=3, convert_to_iter_based=True, by_epoch=True)
        ],
        'momentum': [dict(type='CosineAnnealingMomentum', T_max=12, by_epoch=False)],
        'plateau': [dict(type='ReduceOnPlateauLR', monitor='mean', patience=0, by_epoch=True)],
        'two': [
            dict(type='ConstantLR', factor=0.5, by_epoch=False, end=3),
            dict(type='StepLR', step_size=2, gamma=0.7, by_epoch=by_epochs),
            dict(type='ExponentialLR', gamma=0.99, by_epoch=False),
        ],
        'onecycle': [dict(type='OneCycleLR', eta_max=0.05, total_steps=24, by_epoch=False)],
    }
    if kind == 'converted' and not by_epochs:
        known['converted'] = known['poly']
    return known[kind]


def _default_hooks(full: Case, root: Path) -> dict:
    by_epoch = (full['loop'] == 'epoch') != (full['by_epoch'] == 'other')
    checkpoint = dict(
        type='CheckpointHook', interval=full['interval'], by_epoch=by_epoch,
        max_keep_ckpts=full['max_keep'], save_last=full['save_last'],
        save_begin=full['save_begin'], save_best=full['save_best'],
        rule='greater' if full['save_best'] == 'auto' else full['rule'],
        save_optimizer=full['save_optimizer'], save_param_scheduler=full['save_scheduler'],
        published_keys=full['published'], filename_tmpl=full['template'],
    )  # fmt: skip
    if full['out_dir'] is not None:
        checkpoint['out_dir'] = _folder(full, root, full['out_dir'])
    logger = dict(
        type='LoggerHook', interval=full['log_interval'], ignore_last=full['ignore_last'],
        interval_exp_name=full['exp_name'],
    )  # fmt: skip
    if full['metric_by_epoch'] is not None:
        logger['log_metric_by_epoch'] = full['metric_by_epoch']
    return dict(
        runtime_info=dict(type='RuntimeInfoHook'),
        timer=dict(type='IterTimerHook'),
        logger=logger,
        checkpoint=checkpoint,
    )


def _folder(full: Case, root: Path, name: str) -> str:
    """Return a relative path if a hook changes the current folder, an absolute one otherwise."""
    return name if 'changes_folder' in full['hooks'] else str(root / name)


def _custom_hooks(full: Case, root: Path) -> list[dict]:
    kinds: dict[str, dict] = dict(
        plain=dict(momentum=0.3),
        buffers=dict(momentum=0.3, update_buffers=True),
        late=dict(momentum=0.3, begin_iter=3, interval=2),
        stochastic=dict(ema_type='StochasticWeightAverage'),
    )
    hooks = [dict(type='DiffWitness')]
    if full['ema'] is not None:
        hooks.append(dict(type='EMAHook', **kinds[full['ema']]))
    if full['second_checkpoint'] is not None:
        more = dict(full['second_checkpoint'], type='CheckpointHook', by_epoch=False)
        if 'out_dir' in more:
            more['out_dir'] = _folder(full, root, more['out_dir'])
        hooks.append(more)
    if full['second_logger'] is not None:
        hooks.append(dict(type='LoggerHook', interval=full['second_logger']))
    for name in full['hooks']:
        hooks.append(dict(type=f'Diff_{name}', priority=MEDDLERS[name][1]))
    return hooks


def _backends(kind: str | None) -> list[dict] | None:
    local = dict(type='LocalVisBackend')
    return dict(local=[local], two=[local, dict(type='DiffVisBackend')]).get(kind or '')
