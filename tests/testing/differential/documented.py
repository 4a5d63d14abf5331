"""Intended differences from stock, each with its reason, and differences that are to be fixed.

A test runs the example of each entry and asserts that it still shows the difference, so that
entries that are not needed any more are removed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.testing.differential.cases import Case, completed
from tests.testing.differential.configs import ARMS
from tests.testing.differential.run_case import Found


def always(case: Case) -> bool:
    """Return True."""
    return True


@dataclass(frozen=True)
class Entry:
    """Known difference.

    Args:
        kind: Pattern of the kind of the difference.
        where: Pattern of its place.
        reason: Text that the page of differences must contain.
        example: Case that shows the difference. Defaults to {}.
        arms: Arms that may show it. Defaults to ('ours', 'loops').
        when: Condition on the completed case. Defaults to `always`.
        issue: Issue that asks for a fix; empty if the difference is intended. Defaults to ''.
        leg: Pattern of the training, such as 'whole' or 'stock>ours'. Defaults to ''.
        on_resume: Whether only a resume of the example shows it. Defaults to False.
        stack: The only mm-stack that shows it; any if empty. Defaults to ''.
    """

    kind: str
    where: str
    reason: str
    example: Case = field(default_factory=dict)
    arms: tuple[str, ...] = ('ours', 'loops')
    when: Callable[[Case], bool] = always
    issue: str = ''
    leg: str = ''
    on_resume: bool = False
    stack: str = ''

    def covers(self, found: Found, case: Case) -> bool:
        """Return whether this entry explains a difference of a case."""
        return (
            found.arm in self.arms
            and re.fullmatch(self.kind, found.difference.kind) is not None
            and re.search(self.where, found.difference.where) is not None
            and re.search(self.leg, found.leg) is not None
            and self.when(completed(case))
        )


LINES = r'^(?!.*(Iter|Epoch)\()'
RESUMED = r'>'
HUB = r'(state\.)?hub'


def second_pass(case: Case) -> bool:
    """Return whether the training begins a second pass over shuffled data."""
    is_shuffled = case['loop'] == 'iter' and case['sampler'] == 'infinite' and case['shuffle']
    return is_shuffled and case['passes']


def within_epoch(case: Case) -> bool:
    """Return whether checkpoints are saved in the middle of an epoch."""
    return case['loop'] == 'epoch' and case['by_epoch'] == 'other'


def has(name: str, *values: Any) -> Callable[[Case], bool]:
    """Return a condition: an axis has one of these values, or one of these hooks is used."""

    def found(case: Case) -> bool:
        if name == 'hooks':
            return bool(set(values) & set(case[name]))
        return case[name] in values

    return found


def saved_by_hand(case: Case) -> bool:
    """Return whether a hook saves the only checkpoints; it writes no marker."""
    return case['interval'] == -1 and 'saves_by_hand' in case['hooks']


reads_train_loader = has(
    'hooks', 'reads_loader', 'next_before_train', 'next_in_training', 'replaces_iterator'
)
changes_data = has('hooks', 'changes_dataset', 'sets_epoch')

DOCUMENTED: tuple[Entry, ...] = (
    Entry('files.more', r'tempo(_summary)?\.jsonl?$', 'ThroughputMonitorHook writes its record'),
    Entry(
        'files.more', r'tempo(_summary)?\.jsonl?$', 'the record remains when stock resumes',
        arms=('stock', 'imported'), leg='^(ours|loops)>',
    ),
    Entry('json.more', r': (train/)?tempo/', 'ThroughputMonitorHook logs throughput'),
    Entry('log.more', LINES, 'our parts log the cost of saves, the chosen settings and the speed'),
    Entry(
        rf'{HUB}\.runtime_info\.more', r'mmtempo_totals$',
        'checkpoints have running totals of histories that are longer than the kept part',
        arms=ARMS,
    ),
    Entry(
        rf'{HUB}\.(runtime_info|resumed_keys)\.(more|order)', r'train_loader_place$|: $|^$',
        'our loops store the position in the data in each checkpoint',
        arms=('loops',), leg='whole|loops',
    ),
    Entry(
        rf'{HUB}\.(runtime_info|resumed_keys)\.more', r'train_loader_place$',
        'stock copies that position into its checkpoints after a resume',
        arms=('stock', 'imported', 'ours'), leg='^loops>',
    ),
    Entry(
        r'log\.(missing|warning)', 'WARNING Dataset (_?Sliced|FirstSamples)',
        'the dataset of the first samples is a class of another name',
        arms=('loops',), when=lambda case: case['batches_per_epoch'] is not None,
        example=dict(loop='epoch', samples=12, batches_per_epoch=3),
    ),
    Entry(
        r'.*', '',
        'ResumableInfiniteSampler seeds each pass by (seed, pass); '
        'stock draws all passes from one generator',
        arms=('loops',), when=second_pass, example=dict(passes=True, samples=12),
    ),
    Entry(
        r'(?!error|files).*', '',
        "our loaders draw no number from torch's generator; stock's loaders draw one in each pass",
        arms=('loops',), when=has('dropout', 0.5), example=dict(dropout=0.5),
    ),
    Entry(
        r'.*', '', 'PrefetchEpochBasedTrainLoop resumes within an epoch; stock repeats the epoch',
        arms=('loops',), leg=RESUMED, when=within_epoch,
        example=dict(loop='epoch', samples=12, by_epoch='other', interval=2),
    ),
    Entry(
        r'log\.missing', 'WARNING Reach the end', 'our loaders begin a new pass without a restart',
        arms=('loops',), example=dict(sampler='default', samples=12),
    ),
    Entry(
        r'log\.missing', 'Advance dataloader',
        'our loops seek the position instead of skipping batches',
        arms=('loops',), leg=RESUMED,
    ),
    Entry(
        r'log\.missing', 'WARNING Fast sampler-level resume',
        'our loops need no sampler-level resume',
        arms=('loops',), leg=RESUMED, example=dict(sampler='default', samples=12),
    ),
    Entry(
        r'(state\.)?optimizer(\..*)?', 'loss_scaler', 'bfloat16 needs no loss scaling',
        when=has('amp', 'bfloat16'), example=dict(amp='bfloat16'),
    ),
    Entry(
        rf'{HUB}\.log_scalars\.length', '',
        'histories keep only as many values as the windows need',
        when=has('history', 5), arms=ARMS,
        example=dict(history=5, window=3),
    ),
    Entry(
        r'(log|json)\..*', '',
        'stock that resumes such a checkpoint computes statistics of the whole run from that part',
        arms=('stock', 'imported'), leg='^(ours|loops)>',
        when=lambda case: case['history'] == 5 and case['windows'] == 'global',
        example=dict(
            loop='epoch', samples=16, interval=2, log_interval=1, windows='global', history=5,
            clip='norm', schedule='poly', state='moving', resume='stop', stop_epoch=2,
        ),
        on_resume=True,
    ),
    Entry(
        r'log\.(missing|warning)',
        'WARNING (Resumed iteration number|optim_wrapper|Gradient accumulative|.*update)',
        'SparseOptimWrapper words the warning about an incomplete update differently',
        when=lambda case: case['accumulate'] > 1,
        example=dict(accumulate=3), leg=RESUMED,
    ),
    Entry(
        'seen', 'length',
        'a loader with a batch_sampler reports its batch_size; stock reports None',
        arms=('loops',), when=lambda case: case['batch_sampler'] is not None,
        example=dict(batch_sampler='plain', hooks=('reads_length',)),
    ),
    Entry(
        r'.*', '', 'resume takes the newest whole checkpoint if there is no marker',
        leg=RESUMED, when=saved_by_hand,
        example=dict(interval=-1, save_last=False, hooks=('saves_by_hand',)),
    ),
    Entry(
        'error', r'pipeline.py',
        'an error in a sample is raised as a LoaderError that names the sample',
        arms=('loops',), when=lambda case: case['batches_per_epoch'] is not None,
        example=dict(samples=7, sampler='default', batches_per_epoch=3),
    ),
    Entry(
        'error', r'loops.py', 'the stock loop fails where ours trains', arms=('loops',),
        when=lambda case: case['sampler'] is None or reads_train_loader(case),
        example=dict(sampler=None, batch_sampler='growing'),
    ),
    Entry(
        r'.*', '', 'with persistent workers, a hook that iterates over the loader restarts the '
        'iterator of the training in mmengine 0.10.7',
        arms=('loops',), stack='openmmlab',
        when=lambda case: reads_train_loader(case) and case['persistent'],
        example=dict(
            samples=7, batch_size=2, drop_last=True, sampler='default', batches_per_epoch=3,
            workers=1, persistent=True, interval=-1, optimizer='adamw', state='moving',
            hooks=('next_before_train',),
        ),
    ),
    Entry(
        'seen', r'read', 'iterating over our loader starts at the first batch; with an '
        'endless sampler, stock takes samples from the training',
        arms=('loops',), when=lambda case: case['loop'] == 'iter',
        example=dict(hooks=('reads_loader',)),
    ),
    Entry(
        r'(files|log)\..*', '', 'a relative out_dir is resolved at the start; '
        'a later `os.chdir` does not move it', arms=ARMS,
        when=lambda case: has('hooks', 'changes_folder')(case) and case['out_dir'] is not None,
        example=dict(out_dir='out', hooks=('changes_folder',)),
    ),
    Entry(
        rf'seen|(json|log|{HUB}\..*)\..*', '', 'a history that a hook removed is created again '
        'by the next logged value, at another position in the order', arms=ARMS,
        when=has('hooks', 'pops_history', 'clears_histories'),
        example=dict(hooks=('clears_histories',)),
    ),
)  # fmt: skip

# Differences to fix, with the number of their issue and its item.
OPEN: tuple[Entry, ...] = (
)  # fmt: skip


def explained(found: Found, case: Case) -> Entry | None:
    """Return the entry that explains a difference; None if there is none, which is a defect."""
    return next((one for one in (*DOCUMENTED, *OPEN) if one.covers(found, case)), None)
