"""Trainings that are killed while they save resume, and end as an undisturbed one."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mmtempo.checkpoint.resume import MARKER, newest_whole
from tests.testing import forks
from tests.testing.forks import Child
from tests.testing.saving import (
    INTERVAL,
    KEPT,
    assert_same,
    files,
    marked,
    reached,
    resumed_at,
    state,
    steps,
    temporaries,
    train,
    with_writer,
)

LENGTH = 24


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the last checkpoint of a training that is not killed."""
    folder = tmp_path_factory.mktemp('undisturbed')
    forks.run(train, folder / 'log', work=str(folder / 'work'))
    return folder / f'work/iter_{LENGTH}.pth'


def assert_recent(work: Path) -> int:
    """Assert that the next run resumes from a whole file, and loses at most the current save."""
    path, problems = newest_whole(str(work))
    # A kill during the first save comes before any marker.
    assert problems == [] or not (work / MARKER).exists()
    at = 0 if path is None else int(Path(path).stem.rpartition('_')[2])
    begun = max(0, reached(work) - 1) // INTERVAL * INTERVAL
    assert at >= begun - INTERVAL, f'resumes from {at}, although {begun} had been saved'
    return at


def resume(work: Path, log: Path, undisturbed: Path) -> tuple[int, int]:
    """Resume to the end of the training; return the lost iterations and the surplus files."""
    was = reached(work)
    at = assert_recent(work)
    marked_before = (work / MARKER).exists()
    text = forks.run(train, log, work=str(work), resume=True)
    assert resumed_at(text) == at
    assert 'Checkpoint skipped on resume' not in text or not marked_before
    assert_same(marked(work), undisturbed)
    assert temporaries(work) == []
    assert steps(work) == [LENGTH - INTERVAL, LENGTH]
    # An evaluation that was cut off is not repeated, so its best file may be unknown.
    best = state(marked(work))['message_hub']['runtime_info']['best_ckpt']
    assert Path(best).name in files(work)
    return was - at, len(files(work)) - KEPT - 1


def kill_somewhere(child: Child, work: Path, rng: random.Random, with_writer: bool) -> None:
    """Kill a training in a random iteration, or in the save that follows it."""
    first = min(max(1, reached(work)), LENGTH - 1)  # it may have been fast
    iteration = rng.randrange(first, LENGTH)
    child.until(lambda: reached(work) >= iteration, f'iteration {iteration}')
    how = rng.randrange(3)
    if how == 0:
        time.sleep(rng.uniform(0, 0.03))
    elif how == 1:  # a file is being written
        end = time.monotonic() + 0.2
        while not temporaries(work) and time.monotonic() < end:
            pass
    else:  # the file has its name, and the marker is older
        seen = marker(work)
        end = time.monotonic() + 0.2
        while marker(work) == seen and time.monotonic() < end:
            pass
    child.kill(with_writer)


def marker(work: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(work / MARKER)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def sweep(folder: Path, undisturbed: Path, runs: int) -> Counter:
    seen: Counter = Counter()
    for number in range(runs):
        rng = random.Random(number)
        work = folder / str(number)
        log = folder / f'{number}.log'
        child = forks.start(train, log, work=str(work))
        child.until(lambda work=work: reached(work) >= 0, 'the first iteration')
        kill_somewhere(child, work, rng, with_writer=number % 2 == 1)
        seen['left a temporary file'] += bool(temporaries(work))
        if number % 4 == 3:  # kill the resumed training too
            assert_recent(work)
            lines = (work / 'reached').read_text().count('\n')
            child = forks.start(train, log, work=str(work), resume=True)
            child.until(
                lambda: (work / 'reached').read_text().count('\n') > lines,  # noqa: B023
                'the first iteration',
            )
            kill_somewhere(child, work, rng, with_writer=number % 8 == 3)
            seen['killed twice'] += 1
        lost, extra = resume(work, log, undisturbed)
        seen[f'lost {lost} iterations'] += 1
        seen[f'{extra} files more than configured'] += 1
        assert extra <= 2
    return seen


def test_training_resumes_after_a_kill_at_random(undisturbed: Path, tmp_path: Path) -> None:
    sweep(tmp_path, undisturbed, 8)


@pytest.mark.slow
def test_training_resumes_after_many_kills_at_random(undisturbed: Path, tmp_path: Path) -> None:
    for what, count in sorted(sweep(tmp_path, undisturbed, 200).items()):
        print(f'{count:4} {what}')


def train_until(work: str, at: int, **options: Any) -> None:
    """Train with a writer that kills the training before a step on the disk."""
    with_writer(f'{work}.steps', (at,), takes_all=True)
    train(work, **options)


@pytest.fixture(scope='module')
def all_steps(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the steps of a whole training on the disk."""
    work = tmp_path_factory.mktemp('steps') / 'work'
    forks.run(train_until, work.with_suffix('.log'), work=str(work), at=-1)
    return Path(f'{work}.steps').read_text().splitlines()


def killed_before(number: int, work: Path, undisturbed: Path) -> tuple[int, int]:
    child = forks.start(train_until, work.with_suffix('.log'), work=str(work), at=number)
    assert child.wait() == -9
    return resume(work, work.with_suffix('.log'), undisturbed)


def test_steps_of_a_save_are_in_order(all_steps: list[str]) -> None:
    """In a save with a best file, each file is durable before the next one is opened."""
    mark = [
        index for index, name in enumerate(all_steps) if name == f'replace .{MARKER}.mmtempo-tmp'
    ]
    last = next(index for index in mark if 'replace best_score_iter_6.pth' in all_steps[index:][:4])
    begin = max(index for index in mark if index < last)
    while not all_steps[begin].startswith('open'):
        begin += 1
    written = [
        'open .{}.mmtempo-tmp', 'end of archive', 'fsync ', 'replace .{}.mmtempo-tmp', 'fsync '
    ]  # fmt: skip
    expected = [
        name.format(file)
        for file in ('best_score_iter_18.pth', 'iter_18.pth', MARKER)
        for name in written
        if file != MARKER or name != 'end of archive'
    ]
    expected += ['replace best_score_iter_6.pth', 'remove .best_score_iter_6.pth.mmtempo-tmp']
    assert all_steps[begin:][: len(expected)] == expected


@pytest.mark.parametrize(
    ('step', 'later', 'extra'),
    [
        ('replace .last_checkpoint', 0, 0),  # first save: no marker names the file yet
        ('replace iter_3', 0, 0),  # the next run finds that retention had selected it
        ('replace iter_3', 1, 0),  # renamed already: removed as a leftover
        ('replace .best_score_iter_18', 1, 1),  # no numbered checkpoint names it
    ],
)
def test_training_resumes_after_a_kill_at_a_step(
    step: str, later: int, extra: int, all_steps: list[str], undisturbed: Path, tmp_path: Path
) -> None:
    index = next(index for index, name in enumerate(all_steps) if name.startswith(step))
    assert killed_before(1 + index + later, tmp_path / 'work', undisturbed)[1] == extra


@pytest.mark.slow
def test_training_resumes_after_a_kill_at_every_step(
    all_steps: list[str], undisturbed: Path, tmp_path: Path
) -> None:
    assert len(all_steps) > 100
    seen: Counter = Counter()
    for number, step in enumerate(all_steps, 1):
        lost, extra = killed_before(number, tmp_path / str(number), undisturbed)
        seen[f'lost {lost}'] += 1
        seen[f'{extra} more: {step}' if extra else 'as configured'] += 1
    for what, count in sorted(seen.items()):
        print(f'{count:4} {what}')
