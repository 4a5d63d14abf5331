"""Each thread of ours has a name and runs torch with one intra-op thread."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from mmtempo.benchmarks.side_effects_run import native_threads
from mmtempo.utils.threads import PREFIX, HelperThread
from tests.testing.common import ROOT
from tests.testing.toy import SPARSE, config

OF_TORCH = 'QueueFeederThread'  # of multiprocessing, one for each worker of torch's loader


@HOOKS.register_module()
class ListsThreads(Hook):
    """List the threads of the process before and after the save of iteration 10."""

    priority = 'LOWEST'
    seen: dict[str, Any] = {}

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        torch.ones(10**6).add_(1)  # starts the OpenMP team of the main thread
        if runner.iter + 1 == 9:
            self.seen.update(before=native_threads())
        if runner.iter + 1 == 15:
            (hook,) = (one for one in runner.hooks if type(one).__name__ == 'AsyncCheckpointHook')
            hook._saver._writer.wait()
            self.seen.update(
                after=native_threads(), threads=threads(), main=torch.get_num_threads()
            )


def threads() -> dict[str, Any]:
    others = [one for one in threading.enumerate() if one is not threading.main_thread()]
    return {
        one.name: one.torch_threads if isinstance(one, HelperThread) else None
        for one in others
        if not one.name.startswith(OF_TORCH)
    }


def train(work_dir: str) -> None:
    """Train in a fresh process, which may start loader workers."""
    torch.set_num_threads(2)
    cfg = config(Path(work_dir), SPARSE, **{'train_cfg.max_iters': 20})
    cfg.train_cfg.type = 'PrefetchIterBasedTrainLoop'
    cfg.train_dataloader.num_workers = 1
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook')
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', interval=10)
    cfg.custom_hooks = [dict(type='ListsThreads')]
    Runner.from_cfg(cfg).train()
    Path(work_dir, 'seen.json').write_text(json.dumps(ListsThreads.seen))


def test_threads_of_a_training_have_one_torch_thread_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('OPENBLAS_NUM_THREADS', '1')
    command = f'from {__name__} import train; train({str(tmp_path)!r})'
    subprocess.run([sys.executable, '-W', 'ignore', '-c', command], cwd=ROOT, check=True)
    found = json.loads((tmp_path / 'seen.json').read_text())
    expected = {'writer', 'loader', 'machine-watch'}
    assert found['threads'] == {f'{PREFIX}{name}': 1 for name in expected}
    assert found['main'] == 2
    assert found['after'] == found['before']
