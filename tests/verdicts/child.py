"""Run one training of the graded set in this process, as tools/train.py does."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmengine
import torch
from mmengine.config import Config

import mmtempo  # noqa: F401
from mmtempo.cli.run import run_tool
from mmtempo.cli.runner import build_runner
from mmtempo.monitor import training_monitor
from tests.verdicts import numbers, parts  # noqa: F401
from tests.verdicts.cases import CASES
from tests.verdicts.judging import parsed
from tests.verdicts.readings import MadeReadings
from tests.verdicts.truth import truth


def train(name: str, work: Path, words: Sequence[str], environment: dict[str, str]) -> None:
    """Train in this process, write `truth0.json` (the rank) to the work dir, and exit.

    Args:
        name: Name of the case.
        work: Its work dir.
        words: Overrides as in --cfg-options.
        environment: Changes of the environment.
    """
    os.environ.update(environment)
    rank = environment.get('RANK', '0')
    output = os.open(work / f'output{rank}.txt', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    case = CASES[name]
    torch.set_num_threads(1)
    mmengine.runner.runner.collect_env = dict  # takes seconds
    if case.readings:
        MadeReadings.what = case.readings
        training_monitor.MachineReadings = MadeReadings

    def prepare() -> Config:
        cfg = case.config(work)
        cfg.merge_from_dict(parsed(words))
        return cfg

    def run(cfg: Any) -> None:
        try:
            build_runner(cfg).train()
        finally:
            truth.write(work / f'truth{rank}.json')

    sys.exit(run_tool('train.py', prepare, run))
