"""Trainings of a case: whole ones with stock parts and with ours, then resumes.

::

    scratch/whole/<arm>          training from start to end
    scratch/first/<arm>          training that ends early, for resume='stop'
    scratch/<arm>-<arm>          resume of the first arm's work dir by the second arm
      work/ out/ observed        files, and the state observed in the process

All trainings run in scratch/now, so that the paths in files and logs are equal.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import pickle
import random
import re
import shutil
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import mmengine.runner.checkpoint as stock_loading
import torch
from mmengine.config import Config
from mmengine.fileio import FileClient
from mmengine.hooks import CheckpointHook
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import DefaultScope
from mmengine.runner import CheckpointLoader, Runner
from mmengine.visualization import Visualizer

from mmtempo.checkpoint.loading import UNSAFE, register_safe_loading
from tests.testing.differential import meddlers, toys
from tests.testing.differential.cases import Case, completed
from tests.testing.differential.compare import Difference, compare
from tests.testing.differential.configs import ARMS, config_of

LONGEST = 60  # seconds; a training that takes longer hangs
NOW = 'now'
REFERENCE = ('stock', 'stock')
DIRECTIONS = [pair for pair in itertools.product(ARMS, ARMS) if pair != REFERENCE]
BOOKS = (
    'last_ckpt', 'keep_ckpt_ids', 'best_ckpt_path', 'best_ckpt_path_dict', 'key_indicators',
    'out_dir',
)  # fmt: skip
OF_A_RUN = re.compile(r'\d{8}_\d{6}(\.py|\.log)?$|^observed$')


@dataclass(frozen=True)
class Found:
    """Difference, and the training that shows it."""

    leg: str
    arm: str
    difference: Difference


class Hangs(Exception):
    """Error of a training that takes longer than the limit."""


def run_case(
    case: Case, scratch: Path, seed: int = 0, directions: int | None = 2
) -> tuple[list[Found], int, bool]:
    """Return the differences from stock, the number of trainings, and whether stock fails.

    Args:
        case: Case of the training.
        scratch: Empty folder.
        seed: Seed of the choice of directions. Defaults to 0.
        directions: Number of resume directions, in addition to stock to stock; None: all.
            Defaults to 2.
    """
    runs = _Runs(case, scratch)
    found = []
    for arm in ('ours', 'loops'):
        found += runs.compared('whole', arm, runs.whole('stock'), runs.whole(arm))
    if runs.has_failed('whole/stock'):
        return found, runs.count, True
    pairs = [pair for pair in DIRECTIONS if runs.origin(*pair) and not _differs(found, pair[0])]
    if directions is not None:
        draw = random.Random(f'{seed}/directions')
        pairs = sorted(draw.sample(pairs, min(directions, len(pairs))))
    if not pairs or not runs.origin(*REFERENCE):
        return found, runs.count, False
    expected = runs.resumed(*REFERENCE)
    for pair in pairs:
        found += runs.compared('>'.join(pair), pair[1], expected, runs.resumed(*pair))
    return found, runs.count, False


def _differs(found: list[Found], arm: str) -> bool:
    """Return whether a resume from the arm would only repeat a difference already found."""
    kinds = {one.difference.kind.partition('.')[0] for one in found if one.arm == arm}
    return bool(kinds & {'error', 'weights', 'optimizer', 'schedules'})


class _Runs:
    """Trainings of a case, each of which runs once."""

    def __init__(self, case: Case, scratch: Path) -> None:
        self.case, self.full, self.scratch, self.count = case, completed(case), scratch, 0

    def has_failed(self, label: str) -> bool:
        return observed(self.scratch / label)['error'] is not None

    def whole(self, arm: str) -> Path:
        return self._once(f'whole/{arm}', arm)

    def origin(self, first: str, then: str) -> bool:
        """Return whether there is a checkpoint to resume from."""
        root = self._first(first)
        return self.full['resume'] == 'stop' or self._file(root) is not None

    def resumed(self, first: str, then: str) -> Path:
        return self._once(f'{first}-{then}', then, self._first(first))

    def compared(self, leg: str, arm: str, stock: Path, ours: Path) -> list[Found]:
        return [Found(leg, arm, one) for one in compare(stock, ours)]

    def _first(self, arm: str) -> Path:
        if self.full['resume'] == 'earlier':
            return self.whole(arm)
        return self._once(f'first/{arm}', arm, stop=True)

    def _file(self, root: Path) -> str | None:
        """Return the path of the earliest remaining checkpoint, as it is during a training."""
        template = self.full['template'] or '*_{}.pth'
        files = [
            path
            for path in root.rglob(template.format('*'))
            if not path.name.startswith('best_') and re.search(r'_\d+\.pth$', path.name)
        ]
        if not files:
            return None
        first = min(files, key=lambda path: int(re.findall(r'\d+', path.name)[-1]))
        return str(self.scratch / NOW / first.relative_to(root))

    def _once(self, label: str, arm: str, origin: Path | None = None, stop: bool = False) -> Path:
        root, now = self.scratch / label, self.scratch / NOW
        if root.exists():
            return root
        now.mkdir(parents=True)
        cfg = config_of(self.case, arm, now)
        if stop:
            by_epoch = self.full['loop'] == 'epoch'
            after = self.full['stop_epoch' if by_epoch else 'stop']
            cfg.custom_hooks.append(dict(type='DiffStop', after=after, by_epoch=by_epoch))
        if origin is not None:
            shutil.copytree(origin, now, dirs_exist_ok=True, ignore=_not_of_the_run)
            cfg.resume = True
            if self.full['resume'] == 'earlier':
                cfg.load_from = self._file(origin)
        self.count += 1
        toys.register_statistic(self.full['windows'] == 'registered')
        with quick(), _loading_of(arm), _inside(now):
            result = train(cfg)
        with open(now / 'observed', 'wb') as file:
            pickle.dump(result, file)
        root.parent.mkdir(exist_ok=True)
        now.rename(root)
        return root


def _not_of_the_run(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if OF_A_RUN.match(name)]


def observed(root: Path) -> dict[str, Any]:
    """Return the state observed in the process of a training."""
    with open(root / 'observed', 'rb') as file:
        return pickle.load(file)


def train(cfg: Config) -> dict[str, Any]:
    """Train and return the state of the process afterwards."""
    toys.NOTES.clear()
    runner, error, trace = None, None, ''
    try:
        with _limited(), _silent():
            runner = Runner.from_cfg(cfg)
            handlers = runner.logger.handlers
            handlers[:] = [one for one in handlers if isinstance(one, logging.FileHandler)]
            runner.train()
    except (Exception, SystemExit) as caught:
        error, trace = f'{type(caught).__name__}: {caught}', traceback.format_exc()
        traceback.clear_frames(caught.__traceback__)
    result = dict(error=error, trace=trace, notes=list(toys.NOTES))
    if runner is not None and error is None:
        result.update(_state_of(runner))
    del runner
    gc.collect()  # our parts close files of a failed training when collected
    _forget()
    return result


def _state_of(runner: Any) -> dict[str, Any]:
    hub = runner.message_hub
    savers = [hook for hook in runner.hooks if isinstance(hook, CheckpointHook)]
    return dict(
        weights=runner.model.state_dict(),
        optimizer=runner.optim_wrapper.state_dict(),
        schedules=[one.state_dict() for one in runner.param_schedulers or ()],
        lr=runner.optim_wrapper.get_lr(),
        counts=dict(iter=runner.iter, epoch=runner.epoch, max_iters=runner.max_iters),
        books=[{name: _plain(getattr(one, name, None)) for name in BOOKS} for one in savers],
        hub=dict(
            log_scalars={key: _lists(value) for key, value in hub.log_scalars.items()},
            runtime_info={key: _plain(value) for key, value in hub.runtime_info.items()},
            resumed_keys=dict(hub._resumed_keys),
        ),
    )


def _lists(history: Any) -> tuple[list, list]:
    values, counts = history.data
    return list(map(float, values)), list(map(float, counts))


def _plain(value: Any) -> Any:
    return value if isinstance(value, (int, float, str, type(None))) else repr(value)


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*args: Any) -> None:
        raise Hangs(f'training has not ended after {LONGEST} s')

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    with (
        open(os.devnull, 'w') as null,
        contextlib.redirect_stdout(null),
        contextlib.redirect_stderr(null),
    ):
        yield


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@contextlib.contextmanager
def _loading_of(arm: str) -> Iterator[None]:
    """Load files as in the process of the arm: without `import mmtempo`, or with it."""
    if arm != 'stock':
        yield
        return
    CheckpointLoader.register_scheme('', stock_loading.load_from_local, force=True)
    try:
        # mmengine 0.10.7 cannot read its checkpoints otherwise, with torch 2.6 or later.
        with mock.patch.dict(os.environ, {UNSAFE: '1'}):
            yield
    finally:
        register_safe_loading()


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Skip steps that take longer than the training: versions, formatting, a pause of 2 s."""
    clock = SimpleNamespace(time=time.time, sleep=lambda seconds: None)
    with (
        mock.patch('mmengine.runner.runner.collect_env', dict),
        mock.patch('mmengine.runner.runner.get_git_hash', str),
        mock.patch('mmengine.runner.loops.time', clock),
        mock.patch.object(Config, 'pretty_text', property(lambda cfg: str(cfg.to_dict()))),
    ):
        yield


def _forget() -> None:
    """Clear the global state of mmengine, so that the next training starts without it."""
    for logger in MMLogger._instance_dict.values():
        for handler in logger.handlers:
            handler.close()
    for kind in (MMLogger, MessageHub, Visualizer, DefaultScope):
        kind._instance_dict.clear()
    FileClient._instances.clear()  # each warns once


assert meddlers  # imported to register the hooks


def prepare() -> None:
    """Configure a process that runs cases."""
    torch.set_num_threads(1)
    warnings.filterwarnings('ignore', module='mmengine|torch')
