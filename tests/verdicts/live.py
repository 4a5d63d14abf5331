"""Run a case of the graded set in processes of its name, and grade what the verdict says."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.testing.two_ranks import free_port
from tests.verdicts import child
from tests.verdicts.judging import Judgment, judgment, slimmed
from tests.verdicts.trainings import Case
from tests.verdicts.truth import Truth

RECORDED = Path(__file__).parent / 'recorded'
CLOSE = 0.15  # relative error of the seconds of a finding
LONGEST = 120.0  # seconds that a training may take
os.environ.update(OMP_NUM_THREADS='1', CUDA_VISIBLE_DEVICES='')
# New processes that do not import everything anew: each is a fork of a server without threads.
PROCESSES = multiprocessing.get_context('forkserver' if hasattr(os, 'fork') else 'spawn')
if hasattr(os, 'fork'):
    PROCESSES.set_forkserver_preload(['tests.verdicts.child'])


@dataclass(frozen=True)
class Grade:
    """A case with what the verdict says of it.

    Attributes:
        case: The case.
        found: The judgment.
        true: Seconds lost, from the case itself.
        computing: Share of the time in training steps, from the case itself; None if recorded.
        summary: The summary that was judged.
        fixed: Whether the printed override removes the finding; None where none is expected.
        after: What happened with the override, in a few words.
    """

    case: Case
    found: Judgment
    true: float
    computing: float | None
    summary: dict[str, Any]
    fixed: bool | None = None
    after: str = ''

    @property
    def is_right(self) -> bool:
        """Return whether the first finding is the cause; if healthy, whether nothing is found."""
        return self.found.key == self.case.key and not (
            self.case.is_healthy and self.found.sentences
        )

    @property
    def ratio(self) -> float | None:
        """Return found over true seconds; None for healthy cases."""
        return self.found.seconds / self.true if self.true and not self.case.is_healthy else None

    @property
    def is_close(self) -> bool:
        """Return whether the seconds are right within 15 %."""
        return self.ratio is not None and abs(self.ratio - 1) <= CLOSE


def grade(case: Case, work: Path, with_fix: bool = True) -> Grade:
    """Run a case, and again with the printed override if it has one.

    Args:
        case: The case.
        work: Folder for its work dirs.
        with_fix: Whether to run it again. Defaults to True.
    """
    if case.first is not None:
        run(case, work / 'run', case.first)
        summary, truth = run(case, work / 'run', dict(resume=True))
    else:
        summary, truth = run(case, work / 'run')
    found = judgment(summary)
    fixed, after = None, ''
    if case.fix and with_fix:
        fixed, after = apply_fix(case, work, found)
    true = case.true_seconds(truth)
    return Grade(case, found, true, truth.computing(), summary, fixed, after)


def apply_fix(case: Case, work: Path, found: Judgment) -> tuple[bool, str]:
    """Run a case with the override that its first finding advises.

    Returns:
        Whether the finding is gone, and the override.
    """
    printed = [one for one in found.overrides if one.partition('=')[0] == case.fix]
    if found.key != case.key or not printed:
        return False, f'no override of {case.fix} is advised'
    after = judgment(run(case, work / 'fixed', words=printed)[0])
    return case.key not in after.keys, f'{printed[0]}: {after.headline}'


def run(
    case: Case, work: Path, options: dict[str, Any] | None = None, words: Sequence[str] = ()
) -> tuple[dict[str, Any], Truth]:
    """Train in new processes, and return the summary and what the training measured.

    Args:
        case: The case.
        work: Its work dir.
        options: Overrides of the config. Defaults to None.
        words: Overrides as in --cfg-options. Defaults to ().
    """
    work.mkdir(parents=True, exist_ok=True)
    words = [*(f'{key}={value}' for key, value in (options or {}).items()), *words]
    port = str(free_port())
    of_all = dict(WORLD_SIZE=str(case.ranks), MASTER_ADDR='127.0.0.1', MASTER_PORT=port)
    processes = [
        PROCESSES.Process(
            target=child.train,
            args=(case.name, work, words, dict(of_all, RANK=str(rank), LOCAL_RANK=str(rank))),
        )
        for rank in range(case.ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONGEST)
        process.kill()
        process.join()
    codes = [process.exitcode for process in processes]
    expected = 130 if case.name == 'interrupted' else 0
    if any(code != expected for code in codes):
        text = (work / 'output0.txt').read_text()[-3000:]
        raise RuntimeError(f'{case.name} ended with {codes}, expected {expected}:\n{text}')
    summary = json.loads((work / 'tempo_summary.json').read_text())
    if case.edit is not None:
        case.edit(summary)
    truth = Truth.read(work / 'truth0.json')
    for rank in range(1, case.ranks):
        for name, seconds in Truth.read(work / f'truth{rank}.json').lost.items():
            truth.lost[name] = truth.lost.get(name, 0.0) + seconds
    return summary, truth


def record(graded: Grade) -> None:
    """Write the summary with the expected key and the true seconds."""
    entry = dict(
        name=graded.case.name,
        key=graded.case.key,
        true_seconds=round(graded.true, 4),
        summary=slimmed(graded.summary),
    )
    text = json.dumps(entry, separators=(',', ':'))
    (RECORDED / f'{graded.case.name}.json').write_text(text + '\n')


def recorded(case: Case) -> Grade:
    """Judge the recorded summary of a case with the present code."""
    entry = json.loads((RECORDED / f'{case.name}.json').read_text())
    summary = entry['summary']
    return Grade(case, judgment(summary), entry['true_seconds'], None, summary)
