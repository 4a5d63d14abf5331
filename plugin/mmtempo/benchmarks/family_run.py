"""Train a config by one policy for a few iterations; print the measured figures as JSON.

python -m mmtempo.benchmarks.family_run CONFIG --tempo balanced --work-dir FOLDER
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from typing import Any

import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from mmtempo.cli.arguments import add_common_arguments, add_overlays
from mmtempo.cli.config import load_config
from mmtempo.cli.runner import build_runner, check_device, prefer_float32_on_cpu
from mmtempo.policies.workload import Workload

from .saved_activations import SavedActivations


class _Finished(Exception):
    """Exception that ends the training when all iterations have been measured."""


class Watch(Hook):
    """Hook that measures iterations, the waits for their batches, and memory.

    Without CUDA, memory is measured in the last but one iteration of the warm-up.

    Args:
        warm_up: Iterations at the start that do not count.
        iterations: Iterations that count.
    """

    priority = 'LOWEST'  # the time of all other hooks belongs to the iteration

    def __init__(self, warm_up: int, iterations: int) -> None:
        self.warm_up, self.iterations = warm_up, iterations
        self.ends: list[float] = []
        self.waited = 0.0
        self.saved_bytes: int | None = None
        self._saved: SavedActivations | None = None

    def before(self, runner: Any) -> None:
        """Add up the wait for a batch; called when the batch is loaded, before all other hooks."""
        if self.ends:
            self.waited += time.perf_counter() - self.ends[-1]
        elif runner.iter == self.warm_up - 2 and not torch.cuda.is_available():
            self._saved = SavedActivations(runner.model)
            self._saved.__enter__()

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if self._saved is not None:
            self._saved.__exit__(None, None, None)
            self.saved_bytes, self._saved = self._saved.bytes, None
        done = runner.iter + 1
        if done == self.warm_up and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if done in (self.warm_up, self.warm_up + self.iterations) and torch.cuda.is_available():
            torch.cuda.synchronize()  # so that the measured time includes the device's work
        if done >= self.warm_up:
            self.ends.append(time.perf_counter())
        if done == self.warm_up + self.iterations:
            raise _Finished

    def figures(self, samples: int | None) -> dict[str, Any]:
        """Return the measured figures.

        Args:
            samples: Number of samples of an iteration; None if it is unknown.
        """
        times = torch.tensor(self.ends, dtype=torch.float64).diff()
        seconds = float(times.sum())
        is_cuda = torch.cuda.is_available()
        return dict(
            it_per_s=len(times) / seconds,
            samples_per_s=None if samples is None else samples * len(times) / seconds,
            cv=float(times.std() / times.mean()),
            data_share=self.waited / seconds,
            memory_bytes=torch.cuda.max_memory_allocated() if is_cuda else self.saved_bytes,
            samples=samples,
            iterations=len(times),
        )


class First(Hook):
    """Hook that calls `Watch.before` ahead of all other hooks.

    Args:
        watch: The hook to call.
    """

    priority = 'HIGHEST'

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        self._watch.before(runner)


def configure(args: argparse.Namespace) -> Config:
    """Load the config with its policy, without evaluation, checkpoints and log lines."""
    cfg = load_config(args)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.test_cfg = cfg.test_dataloader = cfg.test_evaluator = None
    cfg.default_hooks.checkpoint = None
    cfg.train_cfg.pop('val_interval', None)
    cfg.load_from, cfg.resume, cfg.log_level = None, False, 'ERROR'
    prefer_float32_on_cpu(cfg)
    check_device(cfg, training=True)
    return cfg


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_arguments(parser)
    add_overlays(parser)
    parser.add_argument(
        '--warm-up', type=int, default=10, help='number of iterations that do not count'
    )
    parser.add_argument(
        '--iterations', type=int, default=50, help='number of iterations that count'
    )
    args = parser.parse_args()
    cfg = configure(args)
    runner = build_runner(cfg)
    watch = Watch(args.warm_up, args.iterations)
    runner.register_hook(watch)
    runner.register_hook(First(watch))
    with contextlib.suppress(_Finished):
        runner.train()
    print(json.dumps(watch.figures(Workload.of(cfg).samples_per_iteration)))
    return 0


if __name__ == '__main__':
    sys.exit(main())
