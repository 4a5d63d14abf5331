"""Random small trainings; a case is a pure function of its seed."""

from __future__ import annotations

import random
from typing import Any

# The axes whose value differs from PLAIN, in the order of PLAIN. `passes`: whether a shuffled
# InfiniteSampler begins a second pass over the data.
Case = dict[str, Any]

# The plain training: 11 iterations (or 3 epochs) over 64 samples, without optional parts.
PLAIN: Case = dict(
    loop='iter', iters=11, epochs=3, samples=64, batch_size=3, drop_last=False, shuffle=True,
    sampler='infinite', passes=False, batch_sampler=None, batches_per_epoch=None, workers=0,
    persistent=False, val=None, val_begin=1, dynamic=None,
    interval=4, by_epoch='loop', max_keep=-1, save_last=True, save_begin=0, save_best=None,
    rule=None, out_dir=None, save_optimizer=True, save_scheduler=True, published=None,
    template=None, second_checkpoint=None,
    log_interval=3, ignore_last=True, exp_name=1000, metric_by_epoch=None, second_logger=None,
    window=10, windows=None, hierarchy=False, digits=4, history=100,
    optimizer='sgd', groups=False, accumulate=1, clip=None, amp=None, schedule='linear_cosine',
    ema=None, outputs='plain', state='plain', dropout=0.0, data='plain', metainfo=None,
    backends='local', hooks=(), resume='earlier', stop=6, stop_epoch=1,
)  # fmt: skip

# By axis: probability of another value than that of PLAIN, and these values.
ORDINARY: dict[str, tuple[float, tuple]] = dict(
    loop=(0.5, ('epoch',)),
    iters=(0.5, (8, 14)),
    epochs=(0.5, (2, 4)),
    samples=(0.9, (12, 10, 7, 16)),
    batch_size=(0.4, (2, 4)),
    drop_last=(0.3, (True,)),
    shuffle=(0.3, (False,)),
    sampler=(0.3, ('default',)),
    passes=(0.05, (True,)),
    batch_sampler=(0.12, ('plain', 'growing')),
    batches_per_epoch=(0.1, (3,)),
    workers=(0.04, (1, 2)),
    persistent=(0.5, (True,)),
    val=(0.7, (1, 2, 3, 4)),
    val_begin=(0.2, (2, 5)),
    dynamic=(0.1, (((5, 1),), ((3, 2), (7, 1)))),
    interval=(0.7, (1, 2, 3, 5, -1)),
    by_epoch=(0.08, ('other',)),
    max_keep=(0.6, (1, 2, 3)),
    save_last=(0.25, (False,)),
    save_begin=(0.2, (2, 5)),
    save_best=(0.6, ('acc', 'auto', ['acc', 'val_loss'], ['part/acc', 'val_loss'], 'val_loss')),
    rule=(0.3, ('less', 'greater')),
    out_dir=(0.2, ('out',)),
    save_optimizer=(0.1, (False,)),
    save_scheduler=(0.1, (False,)),
    published=(0.12, (['meta', 'state_dict'], 'state_dict')),
    template=(0.1, ('at_{}.pth',)),
    log_interval=(0.6, (1, 2, 5, 50)),
    ignore_last=(0.4, (False,)),
    exp_name=(0.2, (2,)),
    metric_by_epoch=(0.2, (True, False)),
    second_logger=(0.1, (2, 4)),
    window=(0.4, (1, 3)),
    windows=(0.4, ('some', 'epoch', 'global')),
    hierarchy=(0.2, (True,)),
    digits=(0.2, (6,)),
    history=(0.05, (5,)),
    optimizer=(0.6, ('adamw', 'amsgrad', 'plain_sgd', 'nesterov')),
    groups=(0.3, (True,)),
    accumulate=(0.25, (2, 3)),
    clip=(0.3, ('norm', 'value')),
    amp=(0.2, ('bfloat16', 'float16')),
    schedule=(0.7, (None, 'poly', 'multistep', 'converted', 'momentum', 'plateau', 'two')),
    ema=(0.4, ('plain', 'buffers', 'late', 'stochastic')),
    outputs=(0.4, ('numbers', 'sometimes', 'odd', 'shared')),
    state=(0.3, ('odd', 'moving')),
    dropout=(0.06, (0.5,)),
    data=(0.15, ('samples',)),
    metainfo=(0.3, ('plain',)),
    backends=(0.3, (None, 'two')),
    resume=(0.4, ('stop',)),
    stop=(0.5, (4, 7)),
    stop_epoch=(0.4, (2,)),
)

# Users' hooks after which both trainings must still be equal.
HOOKS = (
    'adds', 'weights_before_iter', 'weights_after_iter', 'weights_after_val', 'weights_at_save',
    'reads_history', 'own_scalars', 'own_info', 'changes_lr', 'edits_batch', 'stops_early',
    'reads_length', 'drops_state', 'own_visuals', 'saves_by_hand', 'evaluates', 'zeroes_momentum',
    'last_to_train_iter',
)  # fmt: skip

# Rare values, at most two per case, so that a difference has one cause.
RARE: tuple[tuple[str, Any], ...] = (
    *(('hooks', (name,)) for name in (
        'reads_loader', 'next_before_train', 'next_in_training', 'next_in_val', 'replaces_loader',
        'replaces_iterator', 'changes_dataset', 'sets_epoch', 'uploads', 'loads_last',
        'copies_hub', 'pickles_optimizer', 'replaces_history', 'pops_history', 'clears_histories',
        'copies_schedules', 'wraps_checkpoint', 'calls_checkpoint', 'changes_folder',
        'asks_loader_type',
    )),
    ('schedule', 'onecycle'),
    ('second_checkpoint', dict(interval=3, filename_tmpl='more_{}.pth')),
    ('second_checkpoint', dict(interval=2, out_dir='more', max_keep_ckpts=1)),
    ('metainfo', 'config'), ('metainfo', 'numpy'), ('metainfo', 'nested'),
    ('windows', 'registered'),
    ('data', 'lists'),
    ('state', 'masked'), ('state', 'nan_buffer'), ('state', 'infinite_frozen'),
    ('sampler', None),
)  # fmt: skip


def case_of(seed: int) -> Case:
    """Return the case of a seed; a new axis does not change the draws of the others."""
    case = {}
    for name, (share, values) in ORDINARY.items():
        draw = random.Random(f'{seed}/{name}')
        if draw.random() < share:
            case[name] = draw.choice(values)
    draw = random.Random(f'{seed}/hooks')
    case['hooks'] = tuple(draw.sample(HOOKS, draw.choice((0, 0, 0, 1, 1, 2))))
    draw = random.Random(f'{seed}/rare')
    for name, value in draw.sample(RARE, draw.choice((0, 0, 0, 1, 1, 2))):
        case[name] = (*case['hooks'], *value) if name == 'hooks' else value
    return settled(case)


def settled(case: Case) -> Case:
    """Return the case with combinations that stock accepts, without values equal to PLAIN."""
    full = {**PLAIN, **case}
    by_epochs = full['loop'] == 'epoch'
    if by_epochs:
        full['samples'] = min(full['samples'], 16)
        full['iters'] = PLAIN['iters']
        if full['sampler'] == 'infinite':
            full['sampler'] = PLAIN['sampler']
        full['val'] = full['val'] and min(full['val'], 2)
        full['interval'] = min(full['interval'], 2)
        full['stop'] = PLAIN['stop']
        full['stop_epoch'] = min(full['stop_epoch'], full['epochs'] - 1)
        full['dynamic'] = full['dynamic'] and ((2, 1),)
        full['val_begin'] = min(full['val_begin'], 2)
        full['save_begin'] = min(full['save_begin'], 2)
    else:
        full['epochs'], full['stop_epoch'] = PLAIN['epochs'], PLAIN['stop_epoch']
        if full['sampler'] == 'infinite' and full['shuffle'] and not full['passes']:
            # Our sampler has another order in the second pass over the data.
            full['samples'], full['batches_per_epoch'] = 64, None
    if by_epochs or full['sampler'] != 'infinite' or not full['shuffle']:
        full['passes'] = False
    if full['windows'] == 'epoch' and not by_epochs:
        full['windows'] = 'some'
    if full['val'] is None:
        for name in ('save_best', 'dynamic', 'metric_by_epoch', 'val_begin'):
            full[name] = PLAIN[name]
        if full['schedule'] == 'plateau':
            full['schedule'] = PLAIN['schedule']
        full['hooks'] = tuple(
            name for name in full['hooks'] if name not in ('next_in_val', 'evaluates')
        )
    if full['save_best'] is None:
        full['rule'] = None
    if full['workers'] == 0:
        full['persistent'] = False
    if full['batch_sampler'] == 'growing':
        full['batches_per_epoch'] = None
    if full['drop_last'] and full['samples'] < full['batch_size']:
        full['drop_last'] = False
    return {name: full[name] for name in PLAIN if full[name] != PLAIN[name]}


def completed(case: Case) -> Case:
    """Return the case with every axis."""
    return {**PLAIN, **case}


def described(case: Case) -> str:
    """Return a case as an argument of `--case`."""
    return repr(case)
