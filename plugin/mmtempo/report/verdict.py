"""Judge a run: what is slow, why, and which override improves it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmtempo.replacements import DEFAULT_HOOKS, OURS, REASONS, WITH_AMP
from mmtempo.timing.causes import STEP
from mmtempo.timing.statistics import EVEN, is_even
from mmtempo.utils.phases import HOOKS, LOADER_ENDS
from mmtempo.utils.units import counted, duration, percent

from .data_advice import use_our_loop, waiting_for_data
from .run_figures import FEW, FULL, WORTH, Advice, Finding, RunFigures, is_pause

__all__ = ['Advice', 'Verdict', 'judge']

IDLE = 0.15  # share of the time in which a device may be idle
OFTEN = 0.5  # share of the log points at which a rank must be the slowest to be reported
MAX_STRETCH = 4  # largest factor by which an interval is prolonged
# Stock hook -> its key of `default_hooks`, our hook, mmengine's arguments where the key is absent.
# Not the timer: a run with a summary already has ours.
STOCK_HOOKS = {
    path.rpartition('.')[2]: (key, OURS[path], arguments)
    for key, (path, arguments) in DEFAULT_HOOKS.items()
    if key != 'timer'
}
# Category of stalls -> its name in a verdict.
STALLS = {
    'gc': 'Garbage collection',
    'host': 'Delay on the host',
    'device': 'Delay on the device',
    'pace': 'Sustained slowdown',
    'warm-up': 'Warm-up',
    'unexplained': 'Delay of unknown cause',
}


@dataclass(frozen=True)
class Verdict:
    """A judged run: headline, reasons and advised overrides; the largest cost first."""

    headline: str
    why: list[str] = field(default_factory=list)
    change: list[Advice] = field(default_factory=list)


def judge(summary: Mapping[str, Any]) -> Verdict:
    """Judge the run of a `tempo_summary.json`.

    Reports only what costs more than 3 % of the time, or what may end the run. Each override can
    be passed to --cfg-options, also all of them together.

    Args:
        summary: The content of the file; any key may be missing.
    """
    run = RunFigures(summary)
    if not run.total:
        return Verdict('Nothing was measured.')
    if run.iterations < FEW:
        few = counted(run.iterations, 'iteration')
        return Verdict(f'Too short to judge: {few}; at least {FEW} are needed.')
    candidates = [waiting_for_data(run), _rank_with_late_data(run), _rank_with_slow_steps(run)]
    candidates += [_evaluation(run), _loader_ends(run), *_hooks(run), _unnamed_hooks(run)]
    candidates += [*_stalls(run), _copies(run), _idle_device(run), _unexplained(run), _memory(run)]
    candidates.append(_warnings(run))
    findings = [one for one in candidates if one and (one.share > WORTH or one.is_risk)]
    findings.sort(key=lambda finding: finding.share, reverse=True)
    if not findings or findings[0].share <= WORTH:
        findings.insert(0, _nothing_to_fix(run))
    changes: dict[str, Advice] = {}
    for finding in findings:
        for advice in finding.change:  # the larger cost decides about a key
            changes.setdefault(advice.override.partition('=')[0], advice)
    why = [line for finding in findings for line in finding.why]
    return Verdict(findings[0].headline, why, list(changes.values()))


def _rank_with_late_data(run: RunFigures) -> Finding | None:
    """Judge a rank that waits longer for its data than this one; all others wait for it."""
    ranks = (run.summary.get('ranks') or {}).get('data') or {}
    rank, mean, of = ranks.get('usual'), ranks.get('mean'), ranks.get('of')
    if not rank or mean is None or not of or ranks['often'] < OFTEN * of:
        return None
    own = run.seconds('data') / run.iterations
    share = run.share((mean - own) * run.iterations)
    why = [
        f'The slowest rank waits {duration(mean)} per iteration for data, rank 0 {duration(own)}.',
        f'Rank {rank} was the slowest at {ranks["often"]} of {counted(of, "log point")}.',
        'The other ranks wait for it in their backward pass. Check the workers, cores and disk of '
        'its node.',
    ]
    return Finding(share, f'Late data on rank {rank} costs {percent(share)} of the time.', why)


def _rank_with_slow_steps(run: RunFigures) -> Finding | None:
    """Judge a rank that is slow itself; all others wait for it in their backward pass."""
    ranks = (run.summary.get('ranks') or {}).get('step') or {}
    rank, mean, least, of = (ranks.get(key) for key in ('usual', 'mean', 'least', 'of'))
    if rank is None or mean is None or least is None or not of or ranks['often'] < OFTEN * of:
        return None
    share = run.share((mean - least) * run.iterations)
    why = [
        f'Without data and backward pass, the slowest rank takes {duration(mean)} per iteration, '
        f'the fastest {duration(least)}.',
        f'Rank {rank} was the slowest at {ranks["often"]} of {counted(of, "log point")}.',
        'The other ranks wait for it. Check its hooks, and the load and clocks of its node.',
    ]
    return Finding(share, f'Slow steps on rank {rank} cost {percent(share)} of the time.', why)


def _evaluation(run: RunFigures) -> Finding:
    """Judge the time of evaluations."""
    seconds = run.seconds('evaluation')
    share = run.share(seconds)
    change = []
    if run.has_part('ValLoop'):
        change.append(Advice('val_cfg.type=PrefetchValLoop', 'prepares and copies batches ahead'))
    by_epoch = bool(run.setting.get('by_epoch'))
    change += _longer_interval(run, share, 'train_cfg.val_interval', 'val_interval', by_epoch)
    headline = f'Evaluation takes {percent(share)} of the time.'
    return Finding(share, headline, [f'Evaluation: {run.cost(seconds)}.'], change)


def _loader_ends(run: RunFigures) -> Finding:
    """Judge the time between the last batch of an epoch and the end of its loader."""
    seconds = run.seconds(LOADER_ENDS)
    change = []
    if run.setting.get('by_epoch'):
        why = 'keeps the workers alive between epochs'
        change.append(Advice('train_dataloader.persistent_workers=True', why))
    headline = f'Ending the loader takes {percent(run.share(seconds))} of the time.'
    why = f'Ending the loader after the last batch of an epoch: {run.cost(seconds)}.'
    return Finding(run.share(seconds), headline, [why], change)


def _longer_interval(
    run: RunFigures, share: float, key: str, name: str, by_epoch: bool
) -> list[Advice]:
    """Advise a longer interval, in the unit of the config; the setting `name` has iterations."""
    interval, length = run.whole(name), run.whole('epoch_length')
    last = run.summary.get('max_iters') or run.whole('max_iters') or 0
    factor = min(MAX_STRETCH, math.ceil(share / WORTH))
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
    """Judge each hook by class; the phases of a save count for the checkpoint hook."""
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


def _unnamed_hooks(run: RunFigures) -> Finding:
    """Judge the hooks of a run whose loop does not tell them apart."""
    seconds = run.seconds(HOOKS)
    change, by_hand = use_our_loop(run)
    stock = [name for name in STOCK_HOOKS if run.has_part(name)]
    change += [advice for name in stock for advice in _replace(run, name)]
    why = [
        f'All hooks together: {run.cost(seconds)}, {run.per_iteration(seconds)}.',
        'The time of each hook is known with a loop of mmtempo and the call_hook of mmengine only.',
    ]
    headline = f'Hooks take {percent(run.share(seconds))} of the time.'
    return Finding(run.share(seconds), headline, [*why, *by_hand], change)


def _hook(run: RunFigures, name: str, seconds: float) -> Finding:
    share = run.share(seconds)
    change = []
    interval, by_epoch = run.whole('log_interval'), run.setting.get('checkpoint_by_epoch')
    key = f'default_hooks.{run.key_of_hook(name)}.interval'
    if name in STOCK_HOOKS:
        change = _replace(run, name)
    elif run.key_of_hook(name) is None:
        pass
    elif name.endswith('CheckpointHook') and by_epoch is not None:
        change = _longer_interval(run, share, key, 'checkpoint_interval', by_epoch)
    elif name == 'SparseLoggerHook' and interval:
        why = f'logs every {5 * interval} iterations instead of {interval}'
        change.append(Advice(f'{key}={5 * interval}', why))
    headline = f'{name} takes {percent(share)} of the time.'
    why = f'{name}: {run.cost(seconds)}, {run.per_iteration(seconds)}.'
    return Finding(share, headline, [why], change)


def _replace(run: RunFigures, name: str) -> list[Advice]:
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


def _stalls(run: RunFigures) -> list[Finding]:
    """Judge stalls within the step; those of data, hooks and evaluation are in their phases."""
    findings = []
    for category, name in STALLS.items():
        causes = run.lost(category)
        if not causes:
            continue
        seconds, count = sum(row[1] for row in causes), sum(row[2] for row in causes)
        share, main_cause = run.share(seconds), causes[0][0]
        why = [
            f'{name}: {run.cost(seconds)}, in {counted(count, "iteration")}. '
            f'Main cause: {main_cause}.'
        ]
        headline = f'{name} costs {percent(share)} of the time.'
        findings.append(Finding(share, headline, why, _against(run, category, main_cause)))
    return findings


def _against(run: RunFigures, category: str, cause: str) -> list[Advice]:
    """Advise against the main cause of the stalls of a category."""
    workers, cores = run.whole('num_workers') or 0, run.cores or 0
    loader_is_idle = run.share(run.waited) <= WORTH
    if category == 'host' and workers >= cores > 1 and loader_is_idle:
        why = f'{workers} workers on {cores} cores leave no core to the main process'
        return [Advice(f'train_dataloader.num_workers={cores - 1}', why)]
    if cause == 'new input shape':
        why = 'no search for kernels at each new input shape'
        return [Advice('env_cfg.cudnn_benchmark=False', why)]
    return _mixed_precision(run, 'needs less memory') if 'memory' in cause else []


def _mixed_precision(run: RunFigures, why: str) -> list[Advice]:
    """Advise mixed precision if the optimizer wrapper is known to have none."""
    ours = next((amp for plain, amp in WITH_AMP.items() if run.has_part(plain)), None)
    return [Advice(f'optim_wrapper.type={ours}', f'mixed precision: {why}')] if ours else []


def _copies(run: RunFigures) -> Finding:
    """Judge the time before the forward pass: the data preprocessor and its copies."""
    seconds = run.seconds('to_device')
    share = run.share(seconds)
    change, by_hand = use_our_loop(run)
    if run.machine.get('accelerator') and run.setting.get('pin_memory') is False:
        why = 'copies from pinned memory are asynchronous'
        change = [Advice('train_dataloader.pin_memory=True', why), *change]
    headline = f'Preprocessing and copies to the device take {percent(share)} of the time.'
    costs = f'{run.cost(seconds)}, {run.per_iteration(seconds)}'
    why = f'Preprocessing and copies to the device: {costs}.'
    return Finding(share, headline, [why, *by_hand], change)


def _idle_device(run: RunFigures) -> Finding | None:
    """Judge the time in which the device is idle though the training waits for nothing."""
    busy = run.device_busy
    if busy is None:
        return None
    explained = run.seconds('data') + sum(run.seconds(one) for one in run.phases if is_pause(one))
    idle = 1 - busy - run.share(explained)
    if idle <= IDLE:
        return None
    stock = [name for name in STOCK_HOOKS if run.has_part(name)]
    change = [advice for name in stock for advice in _replace(run, name)]
    if 'train_step' not in run.phases:  # a compiled step has this phase
        reason = 'may launch fewer and larger kernels; compare the speed'
        change.append(Advice('compile=True', reason))
    headline = (
        'Apart from waiting for data, evaluation and saving, the device is idle for '
        f'{percent(idle)} of the time.'
    )
    why = [
        f'The driver reports the device busy for {percent(busy)} of the time ({_readings(run)}).',
        f'Waiting for data, evaluation and saving take {percent(run.share(explained))}.',
        'The rest suggests that the host launches kernels more slowly than the device runs them.',
    ]
    return Finding(idle, headline, why, change)


def _readings(run: RunFigures) -> str:
    return counted(run.device_readings, 'reading')


def _unexplained(run: RunFigures) -> Finding:
    """Judge the time that belongs to no phase."""
    seconds = run.seconds('unexplained')
    share = run.share(seconds)
    headline = f'{percent(share)} of the time is unexplained.'
    return Finding(share, headline, [f'Unexplained: {run.cost(seconds)}.'])


def _memory(run: RunFigures) -> Finding | None:
    """Judge memory that is nearly full or that causes stalls."""
    causes, used = run.lost('memory'), run.peak.get('ram_used') or 0.0
    if not causes and used <= FULL:
        return None
    seconds, count = sum(row[1] for row in causes), sum(row[2] for row in causes)
    why = [f'{percent(used)} of the memory was in use.'] if used > FULL else []
    if causes:
        costs = f'{run.cost(seconds)}, in {counted(count, "iteration")}'
        why.append(f'{causes[0][0].capitalize()}: {costs}.')
    workers, ahead = run.whole('num_workers') or 0, run.whole('prefetch_factor') or 1
    change = []
    if workers and ahead > 1:
        reason = f'fewer prefetched batches in memory than with {ahead}'
        change.append(Advice(f'train_dataloader.prefetch_factor={ahead // 2}', reason))
    if workers > 1 and run.share(run.waited) <= WORTH:
        reason = f'each of the {workers} workers takes memory; the loader is not the limit'
        change.append(Advice(f'train_dataloader.num_workers={workers // 2}', reason))
    share = run.share(seconds)
    headline = f'Lack of memory costs {percent(share)} of the time.'
    if causes and causes[0][0] == 'page faults' and used <= FULL:
        headline = f'Page faults cost {percent(share)} of the time.'
    return Finding(share, headline, why, change if used > FULL or share > WORTH else [], True)


def _warnings(run: RunFigures) -> Finding:
    """Pass on the first warnings of the run."""
    lines = [str(line) for line in (run.summary.get('warnings') or [])[:3]]
    return Finding(0.0, '', lines, is_risk=bool(lines))


def _nothing_to_fix(run: RunFigures) -> Finding:
    """Describe a run without a cost that justifies a change: where its time goes, how evenly."""
    computing = percent(run.share(sum(run.seconds(name) for name in STEP)))
    cv, lost = run.summary.get('cv'), (run.summary.get('lost') or {}).get('seconds') or 0.0
    why, change = [], []
    headline = f'Nothing to fix: {computing} of the time is spent in training steps.'
    if cv is not None:
        varying = f'vary by {percent(cv)} (target: below {percent(EVEN)}).'
        if is_even(cv):
            headline += f' Iteration times {varying}'
        else:
            limit = percent(WORTH)
            headline = f'No cost exceeds {limit} of the time, but iteration times {varying}'
            why.append(f'Stalls cost {percent(run.share(lost))} of the time.')
    busy = run.device_busy
    if busy is not None and busy >= 1 - IDLE:
        why += [
            f'The device is the limit: its driver reports it busy for {percent(busy)} of the time '
            f'({_readings(run)}).',
            'Mixed precision (--amp) and channels_last may reduce its work.',
        ]
        change = _mixed_precision(run, 'less work for the device')
    elif not run.machine.get('accelerator'):
        why.append('There is no accelerator: the model runs on the CPU.')
    return Finding(0.0, headline, why, change)
