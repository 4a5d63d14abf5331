"""Findings about hooks and other periodic work: evaluations, saves, log lines, epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mmtempo.replacements import DEFAULT_HOOKS, OURS, REASONS
from mmtempo.utils.phases import HOOKS, LOADER_ENDS
from mmtempo.utils.units import percent

from .data import use_our_loop
from .figures import WORTH, Advice, Finding, RunFigures, is_save

SEVERAL = 2  # saves or evaluations; one, as at the end of a run, is no rate
LOGGERS = ('LoggerHook', 'SparseLoggerHook', 'ThroughputMonitorHook')  # they make the log lines
MARGIN = 1.3  # by which the cost at a longer interval shall be below WORTH
MAX_STRETCH = 4  # largest factor by which the interval of evaluations or saves is prolonged
LEAST_STRETCH = 5  # of log lines
# Stock hook -> its key of `default_hooks`, our hook, mmengine's arguments where the key is absent.
# Not the timer: a run with a summary already has ours.
STOCK_HOOKS = {
    path.rpartition('.')[2]: (key, OURS[path], arguments)
    for key, (path, arguments) in DEFAULT_HOOKS.items()
    if key != 'timer'
}


def evaluation(run: RunFigures) -> Iterator[Finding]:
    """Find evaluations that cost much."""
    seconds = run.seconds('evaluation')
    if not run.is_worth(seconds) or run.count('evaluation') < SEVERAL:
        return
    change = []
    if run.has_part('ValLoop'):
        change.append(Advice('val_cfg.type=PrefetchValLoop', 'prepares and copies batches ahead'))
    by_epoch = bool(run.setting.get('by_epoch'))
    change += _longer_interval(run, seconds, 'train_cfg.val_interval', 'val_interval', by_epoch)
    headline = f'Evaluation takes {percent(run.share(seconds))} of the time.'
    why = [f'Evaluation: {run.cost(seconds)}.', *_saving(run, seconds, change)]
    yield Finding('evaluation', seconds, headline, why, change, is_periodic=True)


def epochs(run: RunFigures) -> Iterator[Finding]:
    """Find workers that end, and start again, with each epoch."""
    ending, starts = run.seconds(LOADER_ENDS), max(1, run.loader['starts'])
    starting = (run.loader['starting'] + run.loader['restarting']) * (starts - 1) / starts
    seconds = ending + starting
    if not run.is_worth(seconds) or max(run.count(LOADER_ENDS), starts) < SEVERAL:
        return
    change = []
    if run.setting.get('persistent_workers') is False and run.whole('num_workers'):
        reason = 'keeps the workers alive between epochs'
        change.append(Advice('train_dataloader.persistent_workers=True', reason))
    headline = (
        f'Restarting the loader in each epoch takes {percent(run.share(seconds))} of the time.'
    )
    why = []
    if ending:
        why.append(f'Ending the loader after the last batch of an epoch: {run.cost(ending)}.')
    if starting:
        why.append(f'Starting workers and their first batches: {run.cost(starting)}.')
    why += _saving(run, seconds, change)
    yield Finding('epochs', seconds, headline, why, change, is_periodic=True)


def hooks(run: RunFigures) -> Iterator[Finding]:
    """Find expensive hooks by class; the phases of a save or a log line count for their hook."""
    logger = 'LoggerHook' if run.has_part('LoggerHook') else 'SparseLoggerHook'
    savers = [phase for phase in run.phases if 'CheckpointHook' in phase]
    saver = savers[0].removeprefix('hook:').partition(' ')[0] if savers else 'AsyncCheckpointHook'
    sums: dict[tuple[str, str], float] = {}
    for phase in run.phases:
        key, name = 'hook', phase.removeprefix('hook:').partition(' ')[0]
        if is_save(phase):
            key, name = 'save', name if name in STOCK_HOOKS else saver
        elif phase.startswith('logging: ') or name in LOGGERS:
            key, name = 'logging', logger
        elif not phase.startswith('hook:'):
            continue
        sums[key, name] = sums.get((key, name), 0.0) + run.seconds(phase)
    for (key, name), seconds in sums.items():
        if key == 'save':  # a run waits for its last save, whatever the interval
            seconds -= run.lost_at_end('checkpoint')
        if run.is_worth(seconds) and not (key == 'save' and _saves(run) < SEVERAL):
            yield _hook(run, key, name, seconds)


def _hook(run: RunFigures, kind: str, name: str, seconds: float) -> Finding:
    change = []
    interval, by_epoch = run.whole('log_interval'), run.setting.get('checkpoint_by_epoch')
    key = f'default_hooks.{run.key_of_hook(name)}.interval'
    if name in STOCK_HOOKS:
        change = replace(run, name)
    elif run.key_of_hook(name) is None:
        pass
    elif name.endswith('CheckpointHook') and by_epoch is not None:
        change = _longer_interval(run, seconds, key, 'checkpoint_interval', by_epoch)
    elif name == 'SparseLoggerHook' and interval:
        longer = interval * max(LEAST_STRETCH, _factor(run, seconds))
        reason = f'logs every {longer} iterations instead of {interval}'
        change.append(Advice(f'{key}={longer}', reason))
    subject = 'Logging' if kind == 'logging' else name
    headline = f'{subject} takes {percent(run.share(seconds))} of the time.'
    why = [f'{subject}: {run.cost(seconds)}, {run.per_iteration(seconds)}.']
    parts = ('logging: ', *(f'hook:{one}' for one in LOGGERS))
    inner = [phase for phase in run.phases if kind == 'logging' and phase.startswith(parts)]
    costs = {phase.removeprefix('hook:'): run.cost(run.seconds(phase)) for phase in inner}
    why += [f'Of that, {phase}: {cost}.' for phase, cost in costs.items()]
    periods = [str(one.get('text')) for one in run.periods if one.get('cause') == name]
    why += [f'{text}.' for text in periods] + _saving(run, seconds, change)
    return Finding(kind, seconds, headline, why, change, is_periodic=kind != 'hook')


def unnamed_hooks(run: RunFigures) -> Iterator[Finding]:
    """Find expensive hooks of a run whose loop does not tell them apart."""
    seconds = run.seconds(HOOKS)
    if not run.is_worth(seconds):
        return
    change, by_hand = use_our_loop(run)
    change += stock_hooks(run)
    why = [
        f'All hooks together: {run.cost(seconds)}, {run.per_iteration(seconds)}.',
        'The time of each hook is known with a loop of mmtempo and the call_hook of mmengine only.',
    ]
    headline = f'Hooks take {percent(run.share(seconds))} of the time.'
    yield Finding('hook', seconds, headline, [*why, *by_hand], change)


def stock_hooks(run: RunFigures) -> list[Advice]:
    """Advise our hooks for all stock ones of the run."""
    return [advice for name in STOCK_HOOKS if run.has_part(name) for advice in replace(run, name)]


def replace(run: RunFigures, name: str) -> list[Advice]:
    """Advise our hook for a stock one in `default_hooks`, or for one that mmengine adds."""
    default, ours, arguments = STOCK_HOOKS[name]
    key = run.key_of_hook(name)
    if key is not None:
        return [Advice(f'default_hooks.{key}.type={ours}', REASONS[ours])]
    if run.setting.get('default_hooks') is None or default in run.setting['default_hooks']:
        return []  # it is among the custom hooks, which no override reaches
    return [
        Advice(f'default_hooks.{default}.type={ours}', REASONS[ours]),
        *(
            Advice(f'default_hooks.{default}.{argument}={value}', "keeps mmengine's default")
            for argument, value in arguments.items()
        ),
    ]


def _saves(run: RunFigures) -> int:
    """Return how often the run was saved."""
    interval = run.whole('checkpoint_interval')
    ours = max((run.count(one) for one in run.phases if one.startswith('checkpoint')), default=0)
    return max(ours, run.iterations // interval if interval else 0)


def _saving(run: RunFigures, seconds: float, change: list[Advice]) -> list[str]:
    return [f'Without it the run takes less time: {run.saving(seconds)}.'] if change else []


def _factor(run: RunFigures, seconds: float) -> int:
    """Return by how much an interval must be longer for the cost to be no finding any more."""
    share = run.share(seconds)
    return math.ceil(MARGIN * share / max(1 - share, WORTH) / WORTH)


def _longer_interval(
    run: RunFigures, seconds: float, key: str, name: str, by_epoch: bool
) -> list[Advice]:
    """Advise a longer interval, in the unit of the config; the setting `name` has iterations."""
    interval, length = run.whole(name), run.whole('epoch_length')
    last = run.summary.get('max_iters') or run.whole('max_iters') or 0
    factor = min(MAX_STRETCH, _factor(run, seconds))
    if not interval or factor < 2 or 2 * interval > last:
        return []
    unit, units = 1, 'iterations'
    if by_epoch:
        if not length or interval % length:
            return []
        unit, units = length, 'epochs'
    longer = min(factor, last // interval) * interval // unit
    return [Advice(f'{key}={longer}', f'every {longer} {units} instead of {interval // unit}')]
