"""What is slow in a training, why, and which override mends it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmtempo.replacements import DEFAULT_HOOKS, OURS, REASONS, WITH_AMP
from mmtempo.timing.causes import STEP
from mmtempo.timing.statistics import EVEN, is_even
from mmtempo.utils.phases import LOADER_ENDS
from mmtempo.utils.units import counted, duration, percent

from .data_advice import use_our_loop, waiting_for_data
from .run_figures import FULL, WORTH, Advice, Finding, RunFigures, is_pause

__all__ = ['Advice', 'Verdict', 'judge']

FEW = 20  # iterations, of fewer nothing is said
IDLE = 0.15  # share of the time that a device may be idle
OFTEN = 0.5  # share of log points at which one process has to be the slowest, to be named
RARELY = 4  # times as long that an interval is made at most
# By class: the key of `default_hooks`, ours, and what mmengine gives it where a config has no key.
# Whoever has a summary has our timer.
STOCK_HOOKS = {
    path.rpartition('.')[2]: (key, OURS[path], arguments)
    for key, (path, arguments) in DEFAULT_HOOKS.items()
    if key != 'timer'
}
# What stalls of a category are called.
STALLS = {
    'gc': 'Garbage collection',
    'host': 'A CPU that is taken away',
    'device': 'A device that is held up',
    'pace': 'A slower pace',
    'warm-up': 'Warm-up',
    'unexplained': 'An unknown cause',
}


@dataclass(frozen=True)
class Verdict:
    """What is slow, why, and what to change; the largest loss first."""

    headline: str
    why: list[str] = field(default_factory=list)
    change: list[Advice] = field(default_factory=list)


def judge(summary: Mapping[str, Any]) -> Verdict:
    """What a `tempo_summary.json` means.

    Only what costs more than 3 % of the time, or may end the run, is told. Each override can be
    given to --cfg-options, also all at once.

    Args:
        summary: Its content; what was not measured may be missing.
    """
    run = RunFigures(summary)
    if not run.total:
        return Verdict('Nothing was measured.')
    if run.iterations < FEW:
        few = counted(run.iterations, 'iteration')
        return Verdict(f'Too short to judge: {few}; {FEW} are needed.')
    found = [waiting_for_data(run), _slowest_rank(run), _slowest_step(run)]
    found += [_evaluation(run), _loader_ends(run), *_hooks(run)]
    found += [*_stalls(run), _copies(run), _idle_device(run), _unexplained(run), _memory(run)]
    found.append(_warnings(run))
    findings = [one for one in found if one and (one.share > WORTH or one.is_risk)]
    findings.sort(key=lambda one: one.share, reverse=True)
    if not findings or findings[0].share <= WORTH:
        findings.insert(0, _fine(run))
    changes: dict[str, Advice] = {}
    for one in findings:
        for change in one.change:  # of two for one key, the larger loss has its way
            changes.setdefault(change.override.partition('=')[0], change)
    why = [line for one in findings for line in one.why]
    return Verdict(findings[0].headline, why, list(changes.values()))


def _slowest_rank(run: RunFigures) -> Finding | None:
    """A process that waits longer for its data than this one: all others wait for it."""
    found = (run.summary.get('ranks') or {}).get('data') or {}
    rank, mean, of = found.get('usual'), found.get('mean'), found.get('of')
    if not rank or mean is None or not of or found['often'] < OFTEN * of:
        return None
    own = run.seconds('data') / run.iterations
    share = run.share((mean - own) * run.iterations)
    headline = f'Rank {rank} is late with its data: {percent(share)} of the time.'
    why = (
        f'Rank {rank} waits {duration(mean)} an iteration for data, rank 0 {duration(own)}: it was '
        f'the longest at {found["often"]} of {counted(of, "log point")}. The others wait for it in '
        'their backward pass; look at the workers, cores and disk of its node.'
    )
    return Finding(share, headline, [why])


def _slowest_step(run: RunFigures) -> Finding | None:
    """A process that is slow itself: all others wait for it in their backward pass."""
    found = (run.summary.get('ranks') or {}).get('step') or {}
    rank, mean, least, of = (found.get(key) for key in ('usual', 'mean', 'least', 'of'))
    if rank is None or mean is None or least is None or not of or found['often'] < OFTEN * of:
        return None
    share = run.share((mean - least) * run.iterations)
    headline = f'Rank {rank} is slow in its steps: {percent(share)} of the time.'
    why = (
        f'Rank {rank} takes {duration(mean)} an iteration for what is its own, without data and '
        f'backward pass, the fastest {duration(least)}: it was the longest at {found["often"]} of '
        f'{counted(of, "log point")}. The others wait for it; look at its hooks, the load and the '
        'clocks of its node.'
    )
    return Finding(share, headline, [why])


def _evaluation(run: RunFigures) -> Finding:
    seconds = run.seconds('evaluation')
    share = run.share(seconds)
    change = []
    if run.has_part('ValLoop'):
        change.append(Advice('val_cfg.type=PrefetchValLoop', 'batches are made and copied ahead'))
    by_epoch = bool(run.setting.get('by_epoch'))
    change += _more_rarely(run, share, 'train_cfg.val_interval', 'val_interval', by_epoch)
    headline = f'Evaluation takes {percent(share)} of the time.'
    return Finding(share, headline, [f'Evaluation: {run.cost(seconds)}.'], change)


def _loader_ends(run: RunFigures) -> Finding:
    """Behind the last batch of an epoch."""
    seconds = run.seconds(LOADER_ENDS)
    change = []
    if run.setting.get('by_epoch'):
        why = 'workers stay from one epoch to the next'
        change.append(Advice('train_dataloader.persistent_workers=True', why))
    headline = f'The end of the loader takes {percent(run.share(seconds))} of the time.'
    why = f'The end of the loader, behind the last batch: {run.cost(seconds)}.'
    return Finding(run.share(seconds), headline, [why], change)


def _more_rarely(
    run: RunFigures, share: float, key: str, name: str, by_epoch: bool
) -> list[Advice]:
    """A longer interval, in the unit of the config; the setting has it in iterations."""
    interval, length = run.whole(name), run.whole('epoch_length')
    last = run.summary.get('max_iters') or run.whole('max_iters') or 0
    factor = min(RARELY, math.ceil(share / WORTH))
    if not interval or factor < 2 or 2 * interval > last:
        return []
    unit, units = 1, 'iterations'
    if by_epoch:
        if not length or interval % length:
            return []
        unit, units = length, 'epochs'
    longer = min(factor, last // interval) * interval // unit
    return [Advice(f'{key}={longer}', f'every {longer} {units} instead of {interval // unit}')]


def _hooks(run: RunFigures) -> list[Finding]:
    """What hooks take; a checkpoint has phases of its own as well."""
    sums: dict[str, float] = {}
    for phase in run.phases:
        name = phase.removeprefix('hook:').partition(' ')[0]
        if name.startswith('checkpoint') or name == 'SnapshotFence':
            name = 'AsyncCheckpointHook'
        elif phase.startswith('logging: '):
            name = phase.removeprefix('logging: ').capitalize()
        elif not phase.startswith('hook:'):
            continue
        sums[name] = sums.get(name, 0.0) + run.seconds(phase)
    return [_hook(run, name, seconds) for name, seconds in sums.items()]


def _hook(run: RunFigures, name: str, seconds: float) -> Finding:
    share = run.share(seconds)
    change = []
    interval, by_epoch = run.whole('log_interval'), run.setting.get('checkpoint_by_epoch')
    key = f'default_hooks.{run.key_of_hook(name)}.interval'
    if name in STOCK_HOOKS:
        change = _exchange(run, name)
    elif run.key_of_hook(name) is None:
        pass
    elif name.endswith('CheckpointHook') and by_epoch is not None:
        change = _more_rarely(run, share, key, 'checkpoint_interval', by_epoch)
    elif name == 'SparseLoggerHook' and interval:
        why = f'a line every {5 * interval} iterations instead of {interval}'
        change.append(Advice(f'{key}={5 * interval}', why))
    headline = f'{name} takes {percent(share)} of the time.'
    return Finding(share, headline, [f'{name}: {run.cost(seconds)}, {run.each(seconds)}.'], change)


def _exchange(run: RunFigures, name: str) -> list[Advice]:
    """Ours for a stock hook, where the config's `default_hooks` have it, or mmengine adds it."""
    default, ours, arguments = STOCK_HOOKS[name]
    key = run.key_of_hook(name)
    if key is not None:
        return [Advice(f'default_hooks.{key}.type={ours}', REASONS[ours])]
    if run.setting.get('default_hooks') is None or default in run.setting['default_hooks']:
        return []  # it is among the custom hooks, which no override reaches
    why = 'as mmengine has it where the config does not name the hook'
    return [
        Advice(f'default_hooks.{default}.type={ours}', REASONS[ours]),
        *(Advice(f'default_hooks.{default}.{one}={arguments[one]}', why) for one in arguments),
    ]


def _stalls(run: RunFigures) -> list[Finding]:
    """Stalls within the step; those of data, hooks and evaluation are in their phases."""
    findings = []
    for category, name in STALLS.items():
        causes = run.lost(category)
        seconds, count = sum(row[1] for row in causes), sum(row[2] for row in causes)
        share = run.share(seconds)
        why = f'{name}: {run.cost(seconds)}, in {counted(count, "iteration")}'
        if causes:
            why += f', mostly: {causes[0][0]}'
        change = _against(run, category, causes[0][0]) if causes else []
        headline = f'{name} costs {percent(share)} of the time.'
        findings.append(Finding(share, headline, [f'{why}.'], change))
    return findings


def _against(run: RunFigures, category: str, cause: str) -> list[Advice]:
    workers, cores = run.whole('num_workers') or 0, run.cores or 0
    loader_is_idle = run.share(run.waited) <= WORTH
    if category == 'host' and workers >= cores > 1 and loader_is_idle:
        why = f'{workers} workers on {cores} cores leave the training none'
        return [Advice(f'train_dataloader.num_workers={cores - 1}', why)]
    if cause == 'new input shape':
        return [Advice('env_cfg.cudnn_benchmark=False', 'no search at each new shape')]
    return _mixed_precision(run, 'it takes less memory') if 'memory' in cause else []


def _mixed_precision(run: RunFigures, why: str) -> list[Advice]:
    """Where it is known to be off."""
    found = next((amp for plain, amp in WITH_AMP.items() if run.has_part(plain)), None)
    return [Advice(f'optim_wrapper.type={found}', f'mixed precision: {why}')] if found else []


def _copies(run: RunFigures) -> Finding:
    """All that comes before the model is called: its preprocessor, which also copies."""
    seconds = run.seconds('to_device')
    share = run.share(seconds)
    change, by_hand = use_our_loop(run)
    if run.machine.get('accelerator') and run.setting.get('pin_memory') is False:
        why = 'the device copies from pinned memory by itself'
        change = [Advice('train_dataloader.pin_memory=True', why), *change]
    headline = f'Preprocessing and copies to the device take {percent(share)} of the time.'
    why = f'Preprocessing and copies to the device: {run.cost(seconds)}, {run.each(seconds)}.'
    return Finding(share, headline, [why, *by_hand], change)


def _idle_device(run: RunFigures) -> Finding | None:
    """A device that is idle though nobody waits for a batch: the host is too slow for it."""
    busy = run.device_busy
    if busy is None:
        return None
    explained = run.seconds('data') + sum(run.seconds(one) for one in run.phases if is_pause(one))
    idle = 1 - busy - run.share(explained)
    if idle <= IDLE:
        return None
    stock = [name for name in STOCK_HOOKS if run.has_part(name)]
    change = [change for name in stock for change in _exchange(run, name)]
    if 'train_step' not in run.phases:  # else it is compiled already
        change.append(Advice('compile=True', 'fewer and larger kernels; worth a try'))
    headline = f'The device is idle for {percent(idle)} of the time: the host is too slow.'
    why = (
        f'The device was busy for {percent(busy)} of the time, by its driver at '
        f'{counted(run.device_looks, "look")}; waiting for data, evaluation and checkpoints '
        f'explain {percent(run.share(explained))}.'
    )
    return Finding(idle, headline, [why], change)


def _unexplained(run: RunFigures) -> Finding:
    seconds = run.seconds('unexplained')
    share = run.share(seconds)
    headline = f'{percent(share)} of the time is unexplained.'
    return Finding(share, headline, [f'Unexplained: {run.cost(seconds)}.'])


def _memory(run: RunFigures) -> Finding | None:
    """Memory that is full, or that already costs time."""
    causes, used = run.lost('memory'), run.peak.get('ram_used') or 0.0
    if not causes and used <= FULL:
        return None
    seconds, count = sum(row[1] for row in causes), sum(row[2] for row in causes)
    why = [f'{percent(used)} of the memory was in use.'] if used > FULL else []
    if causes:
        times = counted(count, 'iteration')
        why.append(f'{causes[0][0].capitalize()}: {run.cost(seconds)}, in {times}.')
    workers, ahead = run.whole('num_workers') or 0, run.whole('prefetch_factor') or 1
    change = []
    if workers and ahead > 1:
        key = f'train_dataloader.prefetch_factor={ahead // 2}'
        change.append(Advice(key, f'fewer batches wait in memory than with {ahead}'))
    if workers > 1 and run.share(run.waited) <= WORTH:
        key = f'train_dataloader.num_workers={workers // 2}'
        change.append(Advice(key, f'half of the {workers} workers, each has memory of its own'))
    share = run.share(seconds)
    name = 'A lack of memory'
    if causes and causes[0][0] == 'page faults' and used <= FULL:
        name = 'Memory that is touched for the first time'
    headline = f'{name} costs {percent(share)} of the time.'
    return Finding(share, headline, why, change if used > FULL or share > WORTH else [], True)


def _warnings(run: RunFigures) -> Finding:
    lines = [str(line) for line in (run.summary.get('warnings') or [])[:3]]
    return Finding(0.0, '', lines, is_risk=bool(lines))


def _fine(run: RunFigures) -> Finding:
    """What is said where nothing is worth a change: where the time goes, and how evenly."""
    computing = percent(run.share(sum(run.seconds(name) for name in STEP)))
    cv, lost = run.summary.get('cv'), (run.summary.get('lost') or {}).get('seconds') or 0.0
    why, change = [], []
    headline = f'Nothing to fix: {computing} of the time goes into training steps.'
    target = f'(target: below {percent(EVEN)})'
    if cv is not None and is_even(cv):
        headline = f'{headline[:-1]}, and iterations vary by {percent(cv)} {target}.'
    elif cv is not None:
        headline = (
            f'No single cost is worth a change, but iterations vary by {percent(cv)} {target}; '
            f'stalls cost {percent(run.share(lost))}.'
        )
    busy = run.device_busy
    if busy is not None and busy >= 1 - IDLE:
        why.append(
            f'The device is the limit: it was busy for {percent(busy)} of the time, by its driver '
            f'at {counted(run.device_looks, "look")}. What is left are mixed precision (--amp) and '
            'channels_last.'
        )
        change = _mixed_precision(run, 'less work for the device')
    elif not run.machine.get('accelerator'):
        why.append('The CPU is the limit: there is no accelerator.')
    return Finding(0.0, headline, why, change)
