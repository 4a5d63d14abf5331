"""Toy training that saves often, keeps few checkpoints and records its progress."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import mmengine
import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import HOOKS, METRICS
from mmengine.runner import Runner

from mmtempo.checkpoint import content
from mmtempo.checkpoint.io import writer_process
from mmtempo.checkpoint.io.archive import check_archive
from mmtempo.checkpoint.io.writer_process import TEMPORARY
from mmtempo.checkpoint.resume import BEST, MARKER
from mmtempo.cli.run import run_tool
from mmtempo.cli.runner import build_runner
from tests.testing.toy import STOCK, by_epoch, config, with_evaluation

INTERVAL, KEPT = 3, 2


@METRICS.register_module()
class UpAndDown(BaseMetric):
    """Metric whose score depends on the iteration only; a new best every few evaluations."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(0)

    def compute_metrics(self, results: list) -> dict:
        iteration = MessageHub.get_current_instance().get_info('iter') + 1
        return dict(score=iteration + 10.0 * (iteration % 4))


@HOOKS.register_module()
class Tell(Hook):
    """Hook that writes the number of complete iterations, before the checkpoint hook runs."""

    priority = 'LOW'

    def before_train(self, runner: Runner) -> None:
        self._file = os.open(f'{runner.work_dir}/reached', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(self._file, f'{runner.iter}\n'.encode())

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        os.write(self._file, f'{runner.iter + 1}\n'.encode())


def reached(work: Path) -> int:
    """Return the number of complete iterations; -1 before the training has begun."""
    path = work / 'reached'
    lines = path.read_text().split('\n')[:-1] if path.exists() else []
    return int(lines[-1]) if lines else -1


def saving(work: Path, epochs: bool = False, **options: Any) -> Config:
    """Return the config of 24 iterations, or 3 epochs of 20, with retention, save_best and EMA."""
    cfg = with_evaluation(config(work, STOCK, **{'train_cfg.max_iters': 24}))
    cfg.val_evaluator = dict(type='UpAndDown')
    cfg.val_dataloader.batch_size = 20
    cfg.train_cfg.val_interval = 2 * INTERVAL
    cfg.param_scheduler = dict(type='PolyLR', by_epoch=False, begin=0, end=60)
    cfg.custom_hooks = [dict(type='EMAHook'), dict(type='Tell')]
    cfg.default_hooks.checkpoint = dict(
        type='AsyncCheckpointHook', by_epoch=False, interval=INTERVAL, max_keep_ckpts=KEPT,
        save_best='score', rule='greater',
    )  # fmt: skip
    if epochs:
        by_epoch(cfg, 3)
        cfg.train_cfg.val_interval = 1
        cfg.default_hooks.checkpoint.interval = 1
    cfg.visualizer.vis_backends = []
    cfg.launcher = 'none'
    cfg.merge_from_dict(options)
    return cfg


def warm_up() -> None:
    """Trigger lazy imports, without training: a process that used autograd must not be forked."""
    with tempfile.TemporaryDirectory() as work:
        runner = Runner.from_cfg(saving(Path(work)))
        runner.build_optim_wrapper(runner.optim_wrapper)
        runner.logger.handlers.clear()
    # These take more than half of the time of such a short training.
    content._version()
    Config.pretty_text = property(repr)
    mmengine.runner.runner.collect_env = dict


def train(work: str, **options: Any) -> None:
    """Train in a child process."""
    torch.set_num_threads(1)
    Runner.from_cfg(saving(Path(work), **options)).train()


def through_tool(work: str, **options: Any) -> None:
    """Train as tools/train.py does, and exit with its code."""
    torch.set_num_threads(1)
    sys.exit(
        run_tool(
            'train.py',
            lambda: saving(Path(work), **options),
            lambda cfg: build_runner(cfg).train(),
        )
    )


def with_writer(
    steps: str, killed: tuple = (), takes_all: bool = False, delay: float = 0.0
) -> None:
    """Run `killing_writer.py` as the writing process from now on."""
    os.environ.update(
        WRITER_FILE=writer_process.__file__,
        WRITER_STEPS=steps,
        WRITER_KILLED=' '.join(map(str, killed)),
        WRITER_TAKES_ALL=str(takes_all),
        WRITER_DELAY=str(delay),
    )
    writer_process.__file__ = str(Path(__file__).parent / 'killing_writer.py')


def resumed_at(text: str) -> int:
    """Return the iteration at which a training resumed, by its log; 0 if it did not."""
    found = re.search(r'resumed epoch: \d+, iter: (\d+)', text)
    return int(found.group(1)) if found else 0


def state(path: Path) -> dict:
    return torch.load(path, weights_only=False)


def assert_same(path: Path, other: Path) -> None:
    """Assert that weights, averages, optimizer and schedules are bit-equal."""
    found, expected = state(path), state(other)
    assert found.keys() == expected.keys()
    for key in found.keys() - {'meta', 'message_hub'}:
        assert_equal(found[key], expected[key], key)
    assert found['meta']['iter'] == expected['meta']['iter']
    assert found['meta']['epoch'] == expected['meta']['epoch']


def assert_equal(found: Any, expected: Any, where: str) -> None:
    assert type(found) is type(expected), where
    if isinstance(found, dict):
        assert found.keys() == expected.keys(), where
        for key in found:
            assert_equal(found[key], expected[key], f'{where}.{key}')
    elif isinstance(found, (list, tuple)):
        assert len(found) == len(expected), where
        for index, pair in enumerate(zip(found, expected)):
            assert_equal(*pair, f'{where}.{index}')
    elif isinstance(found, torch.Tensor):
        assert torch.equal(found, expected), where
    else:
        assert found == expected, where


def temporaries(work: Path) -> list[str]:
    return sorted(path.name for path in work.rglob(f'.*{TEMPORARY}'))


def files(work: Path) -> list[str]:
    return sorted(path.name for path in work.glob('*.pth'))


def steps(work: Path) -> list[int]:
    """Return the iterations, or epochs, of the existing checkpoints but the best."""
    names = [name for name in files(work) if not name.startswith(BEST)]
    return sorted(int(number) for name in names for number in re.findall(r'_(\d+)\.pth', name))


def marked(work: Path) -> Path:
    """Return the checkpoint that the marker names; fail unless it is whole."""
    path = Path((work / MARKER).read_text())
    assert check_archive(str(path)) is None
    return path
