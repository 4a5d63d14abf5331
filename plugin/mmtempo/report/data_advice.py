"""Judge the time spent waiting for data, and advise on the loader."""

from __future__ import annotations

import math

from mmtempo.replacements import BY_NAME
from mmtempo.utils.units import counted, duration, percent

from .run_figures import WORTH, Advice, Finding, RunFigures

MOST_AHEAD = 8  # largest prefetch factor that is advised
MARGIN = 1.1  # required throughput of the loader, relative to that of the training
STOCK_LOOPS = {name: ours for name, ours in BY_NAME.items() if name.endswith('TrainLoop')}
CHEAPER = (
    'Make samples cheaper: wrap the dataset in CachedDataset, use the Fast... transforms, replace '
    'Resize and RandomCrop by ResizeRandomCrop, load JPEG with '
    'FastLoadImageFromFile(reduce_to=...).'
)
CHEAPER_WITH_CACHE = (
    'Make samples cheaper: give CachedDataset a larger budget or a later `until`, and use the '
    'Fast... transforms after it.'
)


def waiting_for_data(run: RunFigures) -> Finding | None:
    """Judge the time spent waiting for batches: too few of them, or a few late ones.

    Args:
        run: Figures of the run.
    """
    seconds = run.waited
    share = run.share(seconds)
    if share <= WORTH:
        return None
    delivered = run.computed / (run.computed + seconds)
    headline = f'Waiting for data takes {percent(share)} of the time.'
    why = [
        f'Waiting for data: {run.cost(seconds)}, {run.per_iteration(seconds)}.',
        f'The loader delivers {percent(delivered)} of the batches that the training can process.',
    ]
    late = run.lost('data')
    if late:
        lost, count = sum(row[1] for row in late), sum(row[2] for row in late)
        why.append(
            f'Late batches cost {duration(lost)} of that, in {counted(count, "iteration")}. '
            f'Main cause: {late[0][0]}.'
        )
    causes = {cause for cause, _, _ in late}
    periods = [period for period in run.periods if period.get('cause') in causes]
    why += [_sentence(str(period['text'])) for period in periods if period.get('text')]
    is_steady = run.median('data') > WORTH * (run.summary.get('p50') or 0.0)
    change, by_hand = use_our_loop(run)
    why += by_hand
    if is_steady or any(period.get('what') == 'num_workers' for period in periods):
        advice, limits = _more_workers(run, delivered)
        change, why = change + advice, why + limits
    else:
        change += _further_ahead(run, delivered)
    return Finding(share, headline, why, change)


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


def _more_workers(run: RunFigures, delivered: float) -> tuple[list[Advice], list[str]]:
    """Advise the number of workers that is needed, limited by cores and memory."""
    workers, cores = run.whole('num_workers'), run.cores
    if workers is None or cores is None:
        return [], []
    cheaper = CHEAPER_WITH_CACHE if run.setting.get('cache') else CHEAPER
    if run.is_short_of_memory:
        return [], [f'Memory is short: do not add workers. {cheaper}']
    on_cores = f'{counted(workers, "worker")} on {counted(cores, "core")}'
    # A training without accelerator needs a core itself.
    room = cores if run.machine.get('accelerator') else cores - 1
    if workers >= room:
        return [], [f'No core is left for another worker: {on_cores}. {cheaper}']
    # Without workers, the main process makes the batches while it counts as waiting.
    load = workers / delivered if workers else 1 / delivered - 1
    needed = max(workers + 1, math.ceil(MARGIN * load))
    why = f'{on_cores}; about {needed} are needed'
    if needed <= room:
        return [Advice(f'train_dataloader.num_workers={needed}', why)], []
    limit = f'{counted(cores, "core")} cannot run the {needed} workers that are needed. {cheaper}'
    return [Advice(f'train_dataloader.num_workers={room}', why)], [limit]


def _further_ahead(run: RunFigures, delivered: float) -> list[Advice]:
    """Advise a larger prefetch factor: only some batches are late, the mean rate suffices."""
    workers, ahead = run.whole('num_workers'), run.whole('prefetch_factor') or 2
    if not workers:
        return _more_workers(run, delivered)[0]
    if run.is_short_of_memory or 2 * ahead > MOST_AHEAD:
        return []
    why = f'some batches are late; each worker prepares {2 * ahead} ahead instead of {ahead}'
    return [Advice(f'train_dataloader.prefetch_factor={2 * ahead}', why)]


def _sentence(text: str) -> str:
    return f'{text[:1].upper()}{text[1:]}{"" if text.endswith(".") else "."}'
