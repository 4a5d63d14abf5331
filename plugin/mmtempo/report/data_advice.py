"""What to do about waiting for data."""

from __future__ import annotations

import math

from mmtempo.replacements import BY_NAME
from mmtempo.utils.units import counted, duration, percent

from .run_figures import WORTH, Advice, Finding, RunFigures

AHEAD = 8  # batches ahead of a worker that are advised at most
MARGIN = 1.1  # what a loader should be able to deliver, of what is needed
STOCK_LOOPS = {name: ours for name, ours in BY_NAME.items() if name.endswith('TrainLoop')}
CHEAPER = (
    'Make samples cheaper: wrap the dataset in CachedDataset, take the Fast... transforms, '
    'ResizeRandomCrop for Resize and RandomCrop, FastLoadImageFromFile(reduce_to=...) for JPEG.'
)
CHEAPER_WITH_CACHE = (
    'Make samples cheaper: give CachedDataset a larger budget or a later `until`, and take the '
    'Fast... transforms behind it.'
)


def waiting_for_data(run: RunFigures) -> Finding | None:
    """What waiting for batches costs, and whether it is their number or a few late ones."""
    seconds = run.waited
    share = run.share(seconds)
    if share <= WORTH:
        return None
    delivers = run.computed / (run.computed + seconds)
    loader = f'the loader delivers {delivers:.2f} of what is needed.'
    headline = f'Waiting for data takes {percent(share)} of the time: {loader}'
    why = [f'Waiting for data: {run.cost(seconds)}, {run.each(seconds)}; {loader}']
    late = run.lost('data')
    if late:
        lost, count = sum(row[1] for row in late), sum(row[2] for row in late)
        why.append(
            f'{duration(lost)} of that were lost in {counted(count, "iteration")} whose batch was '
            f'late, mostly: {late[0][0]}.'
        )
    names = {cause for cause, _, _ in late}
    periods = [one for one in run.periods if one.get('cause') in names]
    why += [_sentence(str(one['text'])) for one in periods if one.get('text')]
    comes_always = run.middle('data') > WORTH * (run.summary.get('p50') or 0.0)
    change, by_hand = use_our_loop(run)
    why += by_hand
    if comes_always or any(one.get('what') == 'num_workers' for one in periods):
        advice, limits = _more_workers(run, delivers)
        change, why = change + advice, why + limits
    else:
        change += _further_ahead(run, delivers)
    return Finding(share, headline, why, change)


def use_our_loop(run: RunFigures) -> tuple[list[Advice], list[str]]:
    """Where the loop is a stock one: an override, or a sentence where none would do."""
    ours = STOCK_LOOPS.get(run.setting.get('loop') or '')
    if ours is None:
        return [], []
    why = 'batches are made and copied ahead'
    if run.setting.get('train_cfg_has_type'):
        more = 'train.py --zero-wait exchanges all stock parts'
        return [Advice(f'train_cfg.type={ours}', f'{why}; {more}')], []
    # mmengine takes one of the two, and no override removes a key.
    return [], [f"In the config, write type='{ours}' in train_cfg instead of by_epoch: {why}."]


def _more_workers(run: RunFigures, delivers: float) -> tuple[list[Advice], list[str]]:
    """As many as it takes and as there are cores for; a sentence where that is not enough."""
    workers, cores = run.whole('num_workers'), run.cores
    if workers is None or cores is None:
        return [], []
    cheaper = CHEAPER_WITH_CACHE if run.setting.get('cache') else CHEAPER
    if run.is_short_of_memory:
        return [], [f'Memory is short, so more workers are no way out. {cheaper}']
    on_cores = f'{counted(workers, "worker")} on {counted(cores, "core")}'
    room = cores if run.machine.get('accelerator') else cores - 1  # the training needs one itself
    if workers >= room:
        return [], [f'The CPU is the limit: {on_cores}. {cheaper}']
    # Without workers the training makes its batches in the time that is told as waiting.
    load = workers / delivers if workers else 1 / delivers - 1
    needed = max(workers + 1, math.ceil(MARGIN * load))
    if needed <= room:
        why = f'{on_cores}; {needed} are needed'
        return [Advice(f'train_dataloader.num_workers={needed}', why)], []
    why = f'{on_cores}; {needed} would be needed'
    limit = f'{counted(cores, "core")} will not be enough. {cheaper}'
    return [Advice(f'train_dataloader.num_workers={room}', why)], [limit]


def _further_ahead(run: RunFigures, delivers: float) -> list[Advice]:
    """For samples that take long now and then, while there are enough on average."""
    workers, ahead = run.whole('num_workers'), run.whole('prefetch_factor') or 2
    if not workers:
        return _more_workers(run, delivers)[0]
    if run.is_short_of_memory or 2 * ahead > AHEAD:
        return []
    why = f'some batches are late: let each worker be {2 * ahead} ahead instead of {ahead}'
    return [Advice(f'train_dataloader.prefetch_factor={2 * ahead}', why)]


def _sentence(text: str) -> str:
    return f'{text[:1].upper()}{text[1:]}{"" if text.endswith(".") else "."}'
