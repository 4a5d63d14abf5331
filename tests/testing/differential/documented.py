"""The differences from stock that are meant, each with its reason, and those still to be fixed.

A test runs the example of each entry and asserts that it still shows the difference: an entry
that is no longer needed has to go.
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
    """Hold for every case."""
    return True


@dataclass(frozen=True)
class Entry:
    """A difference that is known.

    Args:
        kind: Pattern of the difference's kind.
        where: Pattern of its place.
        reason: Why it is so, in a sentence of the documentation.
        example: A case that shows it.
        arms: Those which show it.
        when: The cases, with all axes, in which it may be.
        issue: Where it is to be fixed; empty for those that stay.
        leg: Pattern of the training, as 'whole' or 'stock>ours'.
        on_resume: Whether the example shows it only when it is resumed. Defaults to False.
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

    def covers(self, found: Found, case: Case) -> bool:
        """Return whether this explains a difference of a case."""
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
    """Whether ours and stock come to a second pass over shuffled data."""
    is_shuffled = case['loop'] == 'iter' and case['sampler'] == 'infinite' and case['shuffle']
    return is_shuffled and case['passes']


def within_epoch(case: Case) -> bool:
    """Whether a checkpoint may be of the middle of an epoch."""
    return case['loop'] == 'epoch' and case['by_epoch'] == 'other'


def has(name: str, *values: Any) -> Callable[[Case], bool]:
    """Return whether an axis has one of some values; of hooks, one of them."""

    def found(case: Case) -> bool:
        if name == 'hooks':
            return bool(set(values) & set(case[name]))
        return case[name] in values

    return found


def saved_by_hand(case: Case) -> bool:
    """Whether the only files are those that a hook has saved by hand, without a marker."""
    return case['interval'] == -1 and 'saves_by_hand' in case['hooks']


reads_train_loader = has(
    'hooks', 'reads_loader', 'next_before_train', 'next_in_training', 'replaces_iterator'
)
changes_data = has('hooks', 'changes_dataset', 'sets_epoch')

DOCUMENTED: tuple[Entry, ...] = (
    Entry('files.more', r'tempo(_summary)?\.jsonl?$', 'ThroughputMonitorHook leaves its record'),
    Entry(
        'files.more', r'tempo(_summary)?\.jsonl?$', 'its record stays when stock resumes',
        arms=('stock', 'imported'), leg='^(ours|loops)>',
    ),
    Entry('json.more', r': (train/)?tempo/', 'ThroughputMonitorHook logs throughput'),
    Entry('log.more', LINES, 'ours says what a save cost, what it chose, how fast it was'),
    Entry(
        rf'{HUB}\.runtime_info\.more', r'mmtempo_totals$',
        'running totals of histories that are longer than what is kept',
        arms=ARMS,
    ),
    Entry(
        rf'{HUB}\.(runtime_info|resumed_keys)\.(more|order)', r'train_loader_place$|: $|^$',
        'our loops keep in each checkpoint how far the data is', arms=('loops',), leg='whole|loops',
    ),
    Entry(
        rf'{HUB}\.(runtime_info|resumed_keys)\.more', r'train_loader_place$',
        'stock keeps in its checkpoints what it found of our loops in the hub',
        arms=('stock', 'imported', 'ours'), leg='^loops>',
    ),
    Entry(
        r'log\.(missing|warning)', 'WARNING Dataset _?Sliced',
        'the first samples of a data set are a class of another name',
        arms=('loops',), when=lambda case: case['batches_per_epoch'] is not None,
        example=dict(loop='epoch', samples=12, batches_per_epoch=3),
    ),
    Entry(
        r'.*', '',
        'ResumableInfiniteSampler draws each pass from (seed, pass), stock one after the other',
        arms=('loops',), when=second_pass, example=dict(passes=True, samples=12),
    ),
    Entry(
        r'(?!error|files).*', '',
        "our loaders draw nothing from torch's generator, stock's one number for each pass",
        arms=('loops',), when=has('dropout', 0.5), example=dict(dropout=0.5),
    ),
    Entry(
        r'.*', '', 'PrefetchEpochBasedTrainLoop resumes within an epoch, stock repeats the epoch',
        arms=('loops',), leg=RESUMED, when=within_epoch,
        example=dict(loop='epoch', samples=12, by_epoch='other', interval=2),
    ),
    Entry(
        r'log\.missing', 'WARNING Reach the end', 'our loader needs no restart for a new pass',
        arms=('loops',), example=dict(sampler='default', samples=12),
    ),
    Entry(
        r'log\.missing', 'Advance dataloader', 'our loops seek the place and skip no batch',
        arms=('loops',), leg=RESUMED,
    ),
    Entry(
        r'log\.missing', 'WARNING Fast sampler-level resume', 'our loops skip no batch',
        arms=('loops',), leg=RESUMED, example=dict(sampler='default', samples=12),
    ),
    Entry(
        r'(state\.)?optimizer(\..*)?', 'loss_scaler', 'bfloat16 needs no loss scaling',
        when=has('amp', 'bfloat16'), example=dict(amp='bfloat16'),
    ),
    Entry(
        rf'{HUB}\.log_scalars\.length', '', 'histories keep as many values as windows ask for',
        when=has('history', 5), arms=ARMS,
        example=dict(history=5, window=3),
    ),
    Entry(
        r'log\.(missing|warning)',
        'WARNING (Resumed iteration number|Iteration N is|Gradient accumulative|.*update)',
        'SparseOptimWrapper says in its own words what an incomplete update loses',
        when=lambda case: case['accumulate'] > 1,
        example=dict(accumulate=3), leg=RESUMED,
    ),
    Entry(
        'seen', 'length', 'a loader with a batch_sampler knows its batch_size, stock says None',
        arms=('loops',), when=lambda case: case['batch_sampler'] is not None,
        example=dict(batch_sampler='plain', hooks=('reads_length',)),
    ),
    Entry(
        r'.*', '', 'resume takes the newest whole file where no marker names one',
        leg=RESUMED, when=saved_by_hand,
        example=dict(interval=-1, save_last=False, hooks=('saves_by_hand',)),
    ),
    Entry(
        'error', r'pipeline.py', 'an error of a sample is a LoaderError that names the sample',
        arms=('loops',), when=lambda case: case['batches_per_epoch'] is not None,
        example=dict(samples=7, sampler='default', batches_per_epoch=3),
    ),
    Entry(
        'error', r'loops.py', 'stock fails in its own loop, and ours trains', arms=('loops',),
        when=lambda case: case['sampler'] is None or reads_train_loader(case),
        example=dict(sampler=None, batch_sampler='growing'),
    ),
    Entry(
        'seen', r'read', "reading a loader begins with its first batch; with an endless sampler "
        "stock's takes samples from the training",
        arms=('loops',), when=lambda case: case['loop'] == 'iter',
        example=dict(hooks=('reads_loader',)),
    ),
    Entry(
        r'(files|log)\..*', '', 'a relative out_dir stays the folder that it was '
        'at the start, whatever `os.chdir` does later', arms=ARMS,
        when=lambda case: has('hooks', 'changes_folder')(case) and case['out_dir'] is not None,
        example=dict(out_dir='out', hooks=('changes_folder',)),
    ),
    Entry(
        rf'(json|log|{HUB}\..*)\..*', '', 'a history that a hook has taken away comes back '
        'with the next value that is logged, at another place in the order', arms=ARMS,
        when=has('hooks', 'pops_history', 'clears_histories'),
        example=dict(hooks=('clears_histories',)),
    ),
)  # fmt: skip

# Each is to be fixed; the number is that of the issue and its item.
OPEN: tuple[Entry, ...] = (
)  # fmt: skip


def explained(found: Found, case: Case) -> Entry | None:
    """Return the entry that explains a difference; None where it is a defect not yet known."""
    return next((one for one in (*DOCUMENTED, *OPEN) if one.covers(found, case)), None)
