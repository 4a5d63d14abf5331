"""What is slow in a training, why, and which override mends it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.durations import duration, percent
from .data_advice import use_our_loop, waiting_for_data
from .run_figures import FULL, WORTH, Change, Finding, RunFigures

__all__ = ['Change', 'Verdict', 'judge']

EVEN = 0.10  # coefficient of variation below which a training runs evenly
FEW = 20  # iterations, of fewer nothing is said
IDLE = 0.15  # share of an iteration that a device may be idle
RARELY = 4  # times as long that an interval is made at most
STEP = ('to_device', 'forward', 'backward', 'step', 'train_step')
STOCK_HOOKS = {
    'CheckpointHook': ('checkpoint', 'AsyncCheckpointHook', 'saves beside the training'),
    'LoggerHook': ('logger', 'SparseLoggerHook', 'logs values when they have arrived'),
    'RuntimeInfoHook': ('runtime_info', 'SparseRuntimeInfoHook', 'leaves losses on the device'),
}
WITH_AMP = {'OptimWrapper': 'AmpOptimWrapper', 'SparseOptimWrapper': 'SparseAmpOptimWrapper'}
# What stalls of a category are called.
STALLS = {
    'gc': 'Garbage collection',
    'host': 'A CPU that is taken away',
    'device': 'A device that is held up',
    'warm-up': 'Warm-up, which comes once,',
    'unexplained': 'Stalls without a known cause',
}


@dataclass(frozen=True)
class Verdict:
    """What is slow, why, and what to change; the largest loss first."""

    headline: str
    why: list[str] = field(default_factory=list)
    change: list[Change] = field(default_factory=list)


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
        return Verdict(f'Too short to judge: {run.iterations} iterations, of {FEW} at least.')
    found = [waiting_for_data(run), _evaluation(run), *_hooks(run), *_stalls(run)]
    found += [_copies(run), _idle_device(run), _unexplained(run), _memory(run), _warnings(run)]
    findings = [one for one in found if one and (one.share > WORTH or one.is_risk)]
    findings.sort(key=lambda one: one.share, reverse=True)
    if not findings or findings[0].share <= WORTH:
        findings.insert(0, _fine(run))
    changes: dict[str, Change] = {}
    for one in findings:
        for change in one.change:  # of two for one key, the larger loss has its way
            changes.setdefault(change.override.partition('=')[0], change)
    why = [line for one in findings for line in one.why]
    return Verdict(findings[0].headline, why, list(changes.values()))


def _evaluation(run: RunFigures) -> Finding:
    seconds = run.seconds('evaluation')
    share = run.share(seconds)
    change = []
    if use_our_loop(run):
        change.append(Change('val_cfg.type=PrefetchValLoop', 'batches are made and copied ahead'))
    change += _more_rarely(run, share, 'train_cfg.val_interval', 'val_interval')
    headline = f'Evaluation takes {percent(share)} of the time.'
    return Finding(share, headline, [f'Evaluation: {run.cost(seconds)}.'], change)


def _more_rarely(run: RunFigures, share: float, key: str, name: str) -> list[Change]:
    """A longer interval, in the unit of the config; the setting has it in iterations."""
    interval, length = run.whole(name), run.whole('epoch_length')
    last = run.summary.get('max_iters') or run.whole('max_iters') or 0
    factor = min(RARELY, math.ceil(share / WORTH))
    if not interval or factor < 2 or 2 * interval > last:
        return []
    unit, units = 1, 'iterations'
    if run.setting.get('by_epoch') and length and interval % length == 0:
        unit, units = length, 'epochs'
    longer = min(factor, last // interval) * interval // unit
    return [Change(f'{key}={longer}', f'every {longer} {units} instead of {interval // unit}')]


def _hooks(run: RunFigures) -> list[Finding]:
    """What hooks take; a checkpoint has phases of its own as well."""
    sums: dict[str, float] = {}
    for phase in run.phases:
        name = phase.removeprefix('hook:').partition(' ')[0]
        if name.startswith('checkpoint'):
            name = 'AsyncCheckpointHook'
        elif not phase.startswith('hook:') and phase != 'logging':
            continue
        sums[name] = sums.get(name, 0.0) + run.seconds(phase)
    return [_hook(run, name, seconds) for name, seconds in sums.items()]


def _hook(run: RunFigures, name: str, seconds: float) -> Finding:
    share = run.share(seconds)
    change = []
    interval = run.whole('log_interval')
    if name in STOCK_HOOKS:
        key, ours, why = STOCK_HOOKS[name]
        change.append(Change(f'default_hooks.{key}.type={ours}', why))
    elif name.endswith('CheckpointHook'):
        change += _more_rarely(
            run, share, 'default_hooks.checkpoint.interval', 'checkpoint_interval'
        )
    elif name in ('SparseLoggerHook', 'logging') and interval:
        why = f'a line every {5 * interval} iterations instead of {interval}'
        change.append(Change(f'default_hooks.logger.interval={5 * interval}', why))
    headline = f'{name} takes {percent(share)} of the time.'
    return Finding(share, headline, [f'{name}: {run.cost(seconds)}, {run.each(seconds)}.'], change)


def _stalls(run: RunFigures) -> list[Finding]:
    """Stalls within the step; those of data, hooks and evaluation are in their phases."""
    findings = []
    for category, name in STALLS.items():
        causes = run.lost(category)
        seconds, count = sum(row[1] for row in causes), sum(row[2] for row in causes)
        share = run.share(seconds)
        why = f'{name}: {run.cost(seconds)}, in {count} iterations'
        if causes:
            why += f', mostly: {causes[0][0]}'
        change = _against(run, category, causes[0][0]) if causes else []
        headline = f'{name} costs {percent(share)} of the time.'
        findings.append(Finding(share, headline, [f'{why}.'], change))
    return findings


def _against(run: RunFigures, category: str, cause: str) -> list[Change]:
    workers, cores = run.whole('num_workers') or 0, run.cores or 0
    loader_is_idle = run.share(run.waited) <= WORTH
    if category == 'host' and workers >= cores > 1 and loader_is_idle:
        why = f'{workers} workers on {cores} cores leave the training none'
        return [Change(f'train_dataloader.num_workers={cores - 1}', why)]
    if cause == 'new input shape':
        return [Change('env_cfg.cudnn_benchmark=False', 'no search at each new shape')]
    return _mixed_precision(run, 'it takes less memory') if 'memory' in cause else []


def _mixed_precision(run: RunFigures, why: str) -> list[Change]:
    """Where it is known to be off."""
    found = next((amp for plain, amp in WITH_AMP.items() if run.has_part(plain)), None)
    return [Change(f'optim_wrapper.type={found}', f'mixed precision: {why}')] if found else []


def _copies(run: RunFigures) -> Finding:
    seconds = run.seconds('to_device')
    share = run.share(seconds)
    change = use_our_loop(run)
    if run.machine.get('accelerator') and run.setting.get('pin_memory') is False:
        why = 'the device copies from pinned memory by itself'
        change = [Change('train_dataloader.pin_memory=True', why), *change]
    headline = f'Copies to the device take {percent(share)} of the time.'
    why = f'Copies to the device: {run.cost(seconds)}, {run.each(seconds)}.'
    return Finding(share, headline, [why], change)


def _idle_device(run: RunFigures) -> Finding | None:
    """A forward pass that is bound by the host."""
    busy, usual = run.device_share, run.summary.get('p50')
    if busy is None or not usual:
        return None
    idle = 1 - busy - run.middle('data') / usual
    if idle <= IDLE:
        return None
    stock = [one for name, one in STOCK_HOOKS.items() if run.has_part(name)]
    change = [Change(f'default_hooks.{key}.type={ours}', why) for key, ours, why in stock]
    change.append(Change('compile=True', 'fewer and larger kernels; worth a try'))
    headline = f'The device is idle for {percent(idle)} of an iteration: the host is too slow.'
    why = f'The device works for {percent(busy)} of a usual iteration of {duration(usual)}.'
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
        why.append(f'{causes[0][0].capitalize()}: {run.cost(seconds)}, in {count} iterations.')
    workers, ahead = run.whole('num_workers') or 0, run.whole('prefetch_factor') or 1
    change = []
    if workers and ahead > 1:
        key = f'train_dataloader.prefetch_factor={ahead // 2}'
        change.append(Change(key, f'fewer batches wait in memory than with {ahead}'))
    if workers > 1 and run.share(run.waited) <= WORTH:
        key = f'train_dataloader.num_workers={workers // 2}'
        change.append(Change(key, f'half of the {workers} workers, each has memory of its own'))
    share = run.share(seconds)
    headline = f'A lack of memory costs {percent(share)} of the time.'
    return Finding(share, headline, why, change if used > FULL or share > WORTH else [], True)


def _warnings(run: RunFigures) -> Finding:
    lines = [str(line) for line in (run.summary.get('warnings') or [])[:3]]
    return Finding(0.0, '', lines, is_risk=bool(lines))


def _fine(run: RunFigures) -> Finding:
    """What is said where nothing is worth a change: where the time goes, and how evenly."""
    computing = percent(run.share(sum(run.seconds(name) for name in STEP)))
    cv, lost = run.summary.get('cv'), (run.summary.get('lost') or {}).get('seconds') or 0.0
    why, change = [], []
    headline = f'Nothing to fix: {computing} of the time is computing.'
    if cv is not None and cv <= EVEN:
        headline = f'{headline[:-1]}, and iterations vary by {percent(cv)} (target: below 10 %).'
    elif cv is not None:
        headline = (
            f'No single cost is worth a change, but iterations vary by {percent(cv)} (target: '
            f'below 10 %); stalls cost {percent(run.share(lost))}.'
        )
    busy = run.device_share
    if busy is not None and busy >= 1 - IDLE:
        why.append(
            f'The device is the limit: it works for {percent(busy)} of an iteration. What is left '
            'are mixed precision (--amp) and channels_last.'
        )
        change = _mixed_precision(run, 'less work for the device')
    elif not run.machine.get('accelerator'):
        why.append('The CPU is the limit: there is no accelerator.')
    return Finding(0.0, headline, why, change)
