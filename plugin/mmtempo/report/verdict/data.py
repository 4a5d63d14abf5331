"""Findings about the wait for batches, and advice on the loader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from mmtempo.replacements import BY_NAME, TRANSFORMS
from mmtempo.utils.units import counted, duration, percent

from .figures import WORTH, Advice, Finding, RunFigures

MOST_PER_CORE = 4  # workers that are advised for a core, if they wait
COARSE = 0.10  # share of the time in which a loader that reports no waits is found to be slow
MOST_AHEAD = 8  # largest prefetch factor that is advised
MARGIN = 1.1  # required throughput of the loader, relative to that of the training
MOST = 0.5  # share of the waiting, or of the batches, that decides about its kind
FEW_LATE = 0.05  # share of the batches; fewer late ones are no matter of prefetching
WAITING = 0.6  # share of CPU time in a worker's time, below which it waits for something else
IN_USE = 0.85  # share of the CPU time above which no core is free
NEARLY_ALL = 0.9  # of a cache's budget
RESTLESS = 0.8  # share of the time that a worker needs for its batches, above which all are late
STOCK_LOOPS = {name: ours for name, ours in BY_NAME.items() if name.endswith('TrainLoop')}
STOCK_TRANSFORMS = {path.rpartition('.')[2]: ours for path, ours in TRANSFORMS.items()}


def slow_samples(run: RunFigures) -> Iterator[Finding]:
    """Find a few samples that take far longer than the others, whichever worker makes them."""
    if not _is_by_samples(run):
        return
    seconds = run.waited
    stalls = [stall for stall in run.stalls if stall.get('cause') == 'slow sample']
    found = [stall.get('evidence') or {} for stall in stalls]
    samples = sorted(
        {one['slowest_sample'] for one in found if one.get('slowest_sample') is not None}
    )
    why = [f'Waiting for data: {run.cost(seconds)}.']
    if samples:
        longest = max(one.get('sample_seconds') or 0.0 for one in found)
        usual = found[0].get('usual_sample_seconds') or 0.0
        names = ', '.join(map(str, samples[:8])) + (', ...' if len(samples) > 8 else '')
        why.append(
            f'{counted(len(samples), "slow sample")} ({names}): up to {duration(longest)} each, '
            f'others {duration(usual)}. Check their files and what their transforms do.'
        )
    headline = f'Waiting for a few slow samples takes {percent(run.share(seconds))} of the time.'
    yield Finding('data: samples', seconds, headline, why, _further_ahead(run))


def too_few_batches(run: RunFigures) -> Iterator[Finding]:
    """Find a loader that makes batches more slowly than the training takes them."""
    seconds = run.waited
    if not run.is_worth(seconds) or _is_by_samples(run) or not _is_general(run):
        return
    late = sum(lost for _, lost, _ in run.lost('data'))
    if not run.loader['batches'] and late < MOST * seconds and run.share(seconds) < COARSE:
        return  # with stock's loop, taking a batch that is there counts as waiting, too
    delivered = run.computed / (run.computed + seconds)
    why = [
        f'Waiting for data: {run.cost(seconds)}, {run.per_iteration(seconds)}.',
        f'The loader delivers {percent(delivered)} of the batches that the training can process.',
    ]
    change, by_hand = use_our_loop(run)
    key, more, limits = _more_workers(run, delivered)
    headline = f'Waiting for data takes {percent(run.share(seconds))} of the time.'
    yield Finding(
        key, seconds, headline, [*why, *_causes(run), *by_hand, *limits], [*change, *more]
    )


def late_batches(run: RunFigures) -> Iterator[Finding]:
    """Find single late batches, with a loader that is fast enough in the mean."""
    seconds = run.waited
    if not run.is_worth(seconds) or _is_by_samples(run) or _is_general(run):
        return
    why = [f'Waiting for data: {run.cost(seconds)}.']
    late, batches = run.loader['starved'], run.loader['batches']
    if batches:
        why.append(f'{late:.0f} of {batches:.0f} batches were late.')
    change, by_hand = use_our_loop(run)
    why += [*_causes(run), *by_hand]
    if not batches or late > FEW_LATE * batches:
        change += _further_ahead(run)
    headline = f'Waiting for late batches takes {percent(run.share(seconds))} of the time.'
    yield Finding('data: late', seconds, headline, why, change)


def _further_ahead(run: RunFigures) -> list[Advice]:
    workers, ahead = run.whole('num_workers'), run.whole('prefetch_factor') or 2
    if not workers or 2 * ahead > MOST_AHEAD or run.is_short_of_memory:
        return []
    reason = f'each worker prepares {2 * ahead} batches ahead instead of {ahead}'
    return [Advice(f'train_dataloader.prefetch_factor={2 * ahead}', reason)]


def _causes(run: RunFigures) -> list[str]:
    """Return the main cause of late batches, and what recurs."""
    why = [
        f'Late batches: {duration(lost)} of that, in {counted(count, "iteration")}. Main cause: '
        f'{cause}.'
        for cause, lost, count in run.lost('data')[:1]
    ]
    texts = [str(period.get('text') or '').rstrip('.') for period in _periods(run)]
    return why + [f'{text[:1].upper()}{text[1:]}.' for text in texts if text]


def _periods(run: RunFigures) -> list[Mapping[str, Any]]:
    """Return the periods of late batches."""
    causes = [cause for cause, *_ in run.lost('data')]
    return [period for period in run.periods if period.get('cause') in causes]


def use_our_loop(run: RunFigures) -> tuple[list[Advice], list[str]]:
    """Advise to replace a stock train loop: by an override, or by a sentence if none can.

    Args:
        run: Figures of the run.
    """
    ours = STOCK_LOOPS.get(run.setting.get('loop') or '')
    if ours is None:
        return [], []
    why = 'prepares and copies batches ahead'
    if run.setting.get('train_cfg_has_type'):
        more = 'train.py --zero-wait replaces all stock parts'
        return [Advice(f'train_cfg.type={ours}', f'{why}; {more}')], []
    # mmengine refuses `type` together with `by_epoch`, and no override removes a key.
    return [], [f"In the config, write type='{ours}' in train_cfg instead of by_epoch: it {why}."]


def _is_by_samples(run: RunFigures) -> bool:
    """Return whether most of the waiting is for samples that take far longer than others."""
    return run.is_worth(run.waited) and run.lost_to('slow sample') > MOST * run.waited


def _is_general(run: RunFigures) -> bool:
    """Return whether the processes that make batches have no rest, or one of them is too slow."""
    made, workers = run.loader['made'], run.whole('num_workers')
    if made:
        is_general = made > RESTLESS * max(1, workers or 0) * (run.computed + run.waited)
        is_general |= workers == 0
    else:
        is_general = run.median('data') > WORTH * (run.summary.get('p50') or 0.0)
    return is_general or any(period.get('what') == 'num_workers' for period in _periods(run))


def _more_workers(run: RunFigures, delivered: float) -> tuple[str, list[Advice], list[str]]:
    """Return key, overrides and sentences: more workers, as far as cores and memory allow."""
    workers, cores = run.whole('num_workers'), run.cores
    if workers is None or cores is None:
        return 'data: workers', [], []
    on_cores = f'{counted(workers, "worker")} on {counted(cores, "core")}'
    made, cpu, busy = run.loader['made'], run.loader['cpu'], run.pressure.get('busy')
    if not workers:  # the main process makes the batches, and may have waited for a CPU then
        cpu += run.pressure['queued'] * run.total
    # Where the kernel counts it, `cpu` includes the wait for a CPU; else a busy CPU may explain it.
    is_known = 'queued' in run.pressure or (busy is not None and busy < IN_USE)
    waits = is_known and 'cpu' in run.loader and cpu < WAITING * made
    key, limits = 'data: workers', []
    if waits:
        limits.append(
            f'Making a batch needs a CPU in {percent(cpu / made)} of the time; in the rest it '
            'waits for a disk, the network, or another thread or process.'
        )
        if run.pressure['io'] > MOST * run.share(run.waited):
            key = 'data: disk'
            share = percent(run.pressure['io'])
            limits.append(f'A process waited for a disk in {share} of the time.')
    # A training without accelerator needs a core itself.
    room = cores if run.machine.get('accelerator') else cores - 1
    if busy is not None and not waits:
        room = workers + int((1 - busy) * cores) if busy < IN_USE else workers
    # Without workers, the main process makes the batches while it counts as waiting.
    delivered = max(delivered, 1 / (MOST_PER_CORE * cores))
    load = workers / delivered if workers else 1 / delivered - 1
    needed = min(max(workers + 1, math.ceil(MARGIN * load)), MOST_PER_CORE * cores)
    if run.is_short_of_memory:
        return key, [], [*limits, 'Memory is short: do not add workers.']
    if workers >= room and not waits:
        limits += [f'No core is left for another worker: {on_cores}.', *_cheaper(run)]
        return 'data: cpu', [], limits
    why = f'{on_cores}; about {needed} are needed'
    if waits or needed <= room:
        return key, [Advice(f'train_dataloader.num_workers={needed}', why)], limits
    limits.append(f'The free cores cannot run the {needed} workers that are needed.')
    change = [Advice(f'train_dataloader.num_workers={room}', why)]
    return key, change, [*limits, *_cheaper(run)]


def _cheaper(run: RunFigures) -> list[str]:
    """Return how samples may become cheaper, as far as the pipeline allows."""
    why = []
    samples = run.loader['samples']
    if samples and 'cpu' in run.loader:
        why.append(f'A sample needs a CPU for {duration(run.loader["cpu"] / samples)}.')
    cache, names = run.summary.get('cache') or {}, run.setting.get('transforms') or ()
    if not run.setting.get('cache'):
        why.append('Wrap the dataset in CachedDataset: it runs the first transforms once.')
    elif (cache.get('used') or 0) > NEARLY_ALL * (cache.get('budget') or math.inf):
        kept = f'{cache.get("samples")} of {cache.get("total")} samples'
        why.append(f'The budget of CachedDataset is full with {kept}: raise it.')
    faster = [STOCK_TRANSFORMS[name] for name in names if name in STOCK_TRANSFORMS]
    if faster:
        why.append(f'Use {", ".join(faster)} (tempo.data.fast_transforms=True): equal samples.')
    if 'Resize' in names and {'RandomCrop', 'FastRandomCrop'} & set(names):
        why.append('Use ResizeRandomCrop, which resizes only what is cropped.')
    if run.setting.get('files') in ('.jpg', '.jpeg') and not run.setting.get('cache'):
        why.append('FastLoadImageFromFile(reduce_to=...) decodes JPEG files at a smaller size.')
    return why
