"""Weights that are not finite are never published, and their check waits for no device."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.registry import METRICS, MODELS
from mmengine.runner import Runner

from mmtempo.checkpoint.saver import CheckpointError
from mmtempo.device.host_copy import HostCopy
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.logging.nonfinite import NonFiniteError
from tests.testing.checkpoints import At, hook_of, load, logged_lines
from tests.testing.saving import files, marked
from tests.testing.toy import SPARSE, Counted, ToyModel, by_epoch, config, with_evaluation
from tests.testing.two_ranks import run_code_on_ranks

NAN, INF = float('nan'), float('inf')


@METRICS.register_module()
class Growing(Counted):
    """Metric that improves in each evaluation: the number of iterations."""

    def compute_metrics(self, results: list) -> dict:
        return dict(seen=MessageHub.get_current_instance().get_info('iter') + 1.0)


class SlowDevice:
    """Device whose copies to the host do not arrive while `has_arrived` is False.

    Attributes:
        waits: Names of the threads that waited for a copy.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.has_arrived, self.waits = True, []
        values = HostCopy.values

        def waiting(copy: HostCopy) -> list:
            if not self.has_arrived:
                self.waits.append(threading.current_thread().name)
            return values(copy)

        monkeypatch.setattr(HostCopy, 'arrived', property(lambda copy: self.has_arrived))
        monkeypatch.setattr(HostCopy, 'values', waiting)


@pytest.fixture
def slow_device(monkeypatch: pytest.MonkeyPatch) -> SlowDevice:
    return SlowDevice(monkeypatch)


@MODELS.register_module()
class Spare(ToyModel):
    """Model with a parameter that no loss depends on, and tensors not finite on purpose."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spare = torch.nn.Parameter(torch.ones(3))
        self.frozen = torch.nn.Parameter(torch.tensor([0.0, -INF]), requires_grad=False)
        self.register_buffer('mask', torch.tensor([0.0, -INF]))
        self.register_buffer('unknown', torch.tensor([0.0, NAN]))


def spoil(runner: Runner, value: float = NAN) -> None:
    runner.model.spare.data[1] = value


def heal(runner: Runner) -> None:
    spoil(runner, 1.0)


def saving(work: Path, iterations: int = 14, action: str = 'stop', **checkpoint: Any) -> Config:
    """Return the config of a training that saves every fourth iteration and keeps one file."""
    cfg = config(work, SPARSE, **{'train_cfg.max_iters': iterations, 'model.type': 'Spare'})
    cfg.default_hooks.runtime_info.on_nonfinite = action
    options = dict(interval=4, max_keep_ckpts=1) | checkpoint
    cfg.default_hooks.checkpoint.update(type='AsyncCheckpointHook', **options)
    return cfg


def train(cfg: Config, todo: dict[Any, Callable[[Runner], Any]]) -> Runner:
    runner = Runner.from_cfg(cfg)
    runner.register_hook(At(todo))
    runner.train()
    return runner


def stopped(cfg: Config, todo: dict[Any, Callable[[Runner], Any]], says: str) -> Runner:
    """Train, and assert that the run ends with this message."""
    runner = Runner.from_cfg(cfg)
    runner.register_hook(At(todo))
    with pytest.raises(NonFiniteError, match=f'(?s){says}'):
        runner.train()
    return runner


def assert_kept(work: Path, name: str) -> None:
    assert files(work) == [name]
    assert marked(work).name == name


@pytest.mark.parametrize('action', ['stop', 'skip'])
def test_bad_copy_is_not_published_and_ends_the_run(action: str, tmp_path: Path) -> None:
    cfg = saving(tmp_path, action=action)
    cfg.optim_wrapper.type = 'SparseOptimWrapper'
    runner = stopped(
        cfg,
        {8: spoil},
        'iteration 8: spare of the model, after finite losses.*'
        'The last checkpoint, .*iter_4.pth, is from before',
    )
    assert_kept(tmp_path, 'iter_4.pth')
    assert list(hook_of(runner).keep_ckpt_ids) == [4]
    assert runner.message_hub.get_info('last_ckpt').endswith('iter_4.pth')
    assert runner.iter < 13  # at the latest, the next save waits for this one


def test_infinite_weight_is_bad_too(tmp_path: Path) -> None:
    stopped(saving(tmp_path), {8: lambda runner: spoil(runner, INF)}, 'iteration 8: spare')
    assert_kept(tmp_path, 'iter_4.pth')


def test_tensors_not_finite_on_purpose_end_no_run(tmp_path: Path) -> None:
    for kind in ('AsyncCheckpointHook', 'CheckpointHook'):
        cfg = with_evaluation(saving(tmp_path / kind))
        cfg.default_hooks.checkpoint.type = kind
        cfg.train_cfg.val_interval = 5
        train(cfg, {})
        assert files(tmp_path / kind) == ['iter_14.pth']


def test_bad_copy_of_the_last_save(tmp_path: Path) -> None:
    stopped(saving(tmp_path, 8), {8: spoil}, 'iteration 8: spare.*iter_4.pth, is from before')
    assert_kept(tmp_path, 'iter_4.pth')


def test_bad_copy_of_the_last_save_counts_after_the_weights_recovered(tmp_path: Path) -> None:
    """The copy was bad, so the run ends although the model is finite again."""

    class Heals(Hook):
        priority = 'LOWEST'

        def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
            hook_of(runner)._saver._writer.wait()
            heal(runner)

    runner = Runner.from_cfg(saving(tmp_path, 8))
    runner.register_hook(At({8: spoil}))
    runner.register_hook(Heals())
    with pytest.raises(NonFiniteError, match='iteration 8: spare'):
        runner.train()
    assert_kept(tmp_path, 'iter_4.pth')


def test_bad_copy_of_the_first_save(tmp_path: Path) -> None:
    stopped(saving(tmp_path), {4: spoil}, 'iteration 4: spare.*No checkpoint has been written yet')
    assert files(tmp_path) == []
    assert not (tmp_path / 'last_checkpoint').exists()


def test_bad_copy_of_an_epoch(tmp_path: Path) -> None:
    cfg = by_epoch(saving(tmp_path), epochs=4)
    cfg.default_hooks.checkpoint.interval = 1
    stopped(cfg, {40: spoil}, 'iteration 40: spare.*epoch_1.pth, is from before')
    assert_kept(tmp_path, 'epoch_1.pth')


def test_bad_copy_of_a_best_checkpoint(tmp_path: Path) -> None:
    """The weights become bad between the evaluation and the save."""

    class Spoils(Hook):
        priority = 'LOW'

        def after_val_epoch(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
            if runner.iter == 6:
                spoil(runner)

        def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
            if runner.iter == 6:
                hook_of(runner)._saver._writer.wait()

    cfg = with_evaluation(saving(tmp_path, interval=5, save_best='seen', rule='greater'))
    cfg.train_cfg.val_interval = 3
    cfg.val_evaluator.type = 'Growing'
    runner = Runner.from_cfg(cfg)
    runner.register_hook(Spoils())
    with pytest.raises(NonFiniteError, match='iteration 6: spare'):
        runner.train()
    assert files(tmp_path) == ['best_seen_iter_3.pth', 'iter_5.pth']
    assert marked(tmp_path).name == 'iter_5.pth'
    assert runner.message_hub.get_info('best_score') == 3.0
    assert hook_of(runner).best_ckpt_path.endswith('best_seen_iter_3.pth')


def test_average_does_not_hide_the_models_own_weights(tmp_path: Path) -> None:
    cfg = saving(tmp_path)
    cfg.custom_hooks = [dict(type='EMAHook', begin_iter=14)]
    stopped(cfg, {8: spoil}, 'iteration 8: spare of the model')
    assert_kept(tmp_path, 'iter_4.pth')


def terminate(runner: Runner) -> None:
    spoil(runner)
    os.kill(os.getpid(), signal.SIGTERM)


def test_signal_publishes_no_bad_copy(tmp_path: Path) -> None:
    stopped(saving(tmp_path), {6: terminate}, 'iteration 6: spare.*iter_4.pth, is from before')
    assert_kept(tmp_path, 'iter_4.pth')


def test_signal_right_after_a_refused_save(tmp_path: Path) -> None:
    stopped(saving(tmp_path), {8: terminate}, 'iteration 8: spare.*iter_4.pth, is from before')
    assert_kept(tmp_path, 'iter_4.pth')


def test_signal_logs_the_pending_line(tmp_path: Path, slow_device: SlowDevice) -> None:
    """The values of the log point have not arrived when the run ends."""

    def stop(runner: Runner) -> None:
        slow_device.has_arrived = False
        os.kill(os.getpid(), signal.SIGTERM)

    runner = Runner.from_cfg(saving(tmp_path))
    runner.register_hook(At({10: stop}))
    with pytest.raises(SystemExit):
        runner.train()
    assert 'Iter(train) [10/14]' in logged_lines(runner)


def test_warn_refuses_the_copy_and_continues(tmp_path: Path) -> None:
    runner = train(saving(tmp_path, action='warn'), {8: spoil, 10: heal})
    assert (
        'saving iter_8.pth failed: nan or infinity in spare of the model. The files before it '
        'are untouched; the next save is at its usual time'
    ) in logged_lines(runner, 'ERROR')
    assert_kept(tmp_path, 'iter_14.pth')


def test_warn_does_not_hide_that_the_last_save_was_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r'saving iter_14.pth failed: nan or infinity'):
        train(saving(tmp_path, action='warn'), {13: spoil})
    assert_kept(tmp_path, 'iter_12.pth')


def test_earlier_bad_loss_is_reported_instead_of_weights(tmp_path: Path) -> None:
    cfg = saving(tmp_path, interval=8)
    cfg.default_hooks.logger.interval = 1000
    cfg.model.nan_at = (6,)
    stopped(cfg, {}, 'iteration 6: loss nan, loss_a nan')
    assert files(tmp_path) == []


def test_stock_runtime_info_saves_without_a_check(tmp_path: Path) -> None:
    cfg = saving(tmp_path)
    cfg.default_hooks.runtime_info = dict(type='RuntimeInfoHook')
    train(cfg, {8: spoil})
    assert_kept(tmp_path, 'iter_14.pth')


class Counting(Runner):
    """Runner that counts the synchronizations in hooks of the fifth iteration.

    Attributes:
        device: Device whose copies do not arrive from that iteration on.
        waits: Synchronizations by the name of the hook method.
    """

    device: SlowDevice
    waits: dict[str, list]

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        done = self.message_hub.get_info('iter', 0) + 1
        if done != 5 or fn_name not in ('after_train_iter', 'before_val'):
            super().call_hook(fn_name, **kwargs)
            return
        self.device.has_arrived = False
        with SyncCensus() as census:
            super().call_hook(fn_name, **kwargs)
        self.waits[fn_name] = census.waits


def test_save_and_evaluation_do_not_synchronize(tmp_path: Path, slow_device: SlowDevice) -> None:
    """Both are in the iteration of a log point; the file contains all values nevertheless."""
    for name, runner_type in (('expected', Runner), ('found', Counting)):
        cfg = with_evaluation(saving(tmp_path / name, 8, interval=5, max_keep_ckpts=2))
        cfg.train_cfg.val_interval = cfg.default_hooks.logger.interval = 5
        cfg.model.type = 'ToyModel'
        cfg.val_cfg.type = 'PrefetchValLoop'
        cfg.train_cfg.type = 'PrefetchIterBasedTrainLoop'
        runner = runner_type.from_cfg(cfg)
        runner.register_hook(At({6: lambda runner: setattr(slow_device, 'has_arrived', True)}))
        if runner_type is Counting:
            runner.device, runner.waits = slow_device, {}
        runner.train()
    assert runner.waits == dict(after_train_iter=[], before_val=[])
    text = logged_lines(runner)
    assert text.index('Iter(train) [5/8]') < text.index('Iter(val) [ 5/20]')
    expected, found = (
        load(tmp_path / name / 'iter_5.pth')['message_hub']['log_scalars']
        for name in ('expected', 'found')
    )
    assert list(found) == list(expected)
    for key, history in expected.items():
        assert type(found[key]) is type(history)
        assert len(history.data[0]) == (1 if key == 'train/acc' else 5)
        if 'time' not in key:
            assert found[key].data[0].tolist() == history.data[0].tolist(), key


def test_running_totals_are_those_at_the_save(tmp_path: Path, slow_device: SlowDevice) -> None:
    cfg = saving(tmp_path, 9, interval=8)
    cfg.model.type = 'ToyModel'
    cfg.default_hooks.runtime_info.history_length = 3
    cfg.log_processor.window_size = 3
    runner = Runner.from_cfg(cfg)
    runner.register_hook(At({8: lambda runner: setattr(slow_device, 'has_arrived', False)}))
    runner.train()
    hub = load(tmp_path / 'iter_9.pth')['message_hub']
    assert hub['log_scalars']['train/loss'].data[0].shape == (3,)
    assert hub['runtime_info']['mmtempo_totals']['train/loss'][0] == 9


def test_hook_of_a_user_may_write_the_checkpoint(tmp_path: Path) -> None:
    class Writes(Hook):
        def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
            torch.save(checkpoint, tmp_path / 'seen.pth')

    cfg = saving(tmp_path, 9, interval=9)
    cfg.default_hooks.runtime_info.history_length = 3
    cfg.log_processor.window_size = 3
    runner = Runner.from_cfg(cfg)
    runner.register_hook(Writes(), 'LOWEST')
    runner.train()
    for name in ('seen.pth', 'iter_9.pth'):
        totals = load(tmp_path / name)['message_hub']['runtime_info']['mmtempo_totals']
        assert totals['train/loss'][0] == 9, name


def test_hook_of_a_user_may_drop_the_weights(tmp_path: Path) -> None:
    class Drops(Hook):
        def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
            del checkpoint['state_dict']

    runner = Runner.from_cfg(saving(tmp_path, 4))
    runner.register_hook(Drops())
    runner.train()
    assert 'state_dict' not in load(tmp_path / 'iter_4.pth')


def test_evaluation_works_after_a_failed_training(tmp_path: Path) -> None:
    runner = stopped(with_evaluation(saving(tmp_path)), {6: spoil}, 'spare')
    assert runner.val() == dict(seen=40)


def test_bad_weights_end_the_run_before_the_scores_are_logged(
    tmp_path: Path, slow_device: SlowDevice
) -> None:
    cfg = with_evaluation(saving(tmp_path, interval=4, save_best='seen', rule='greater'))
    cfg.train_cfg.val_interval = 6

    def spoil_slowly(runner: Runner) -> None:
        slow_device.has_arrived = False
        spoil(runner)

    runner = stopped(cfg, {6: spoil_slowly}, 'iteration 6: spare.*iter_4.pth, is from before')
    text = logged_lines(runner)
    assert 'Iter(val) [20/20]' in text  # it has run
    assert 'seen' not in text
    assert_kept(tmp_path, 'iter_4.pth')


def test_bad_weights_end_the_evaluation(tmp_path: Path, slow_device: SlowDevice) -> None:
    """The run ends in the iteration where the flags have arrived."""

    class Arrives(Hook):
        def after_val_iter(self, runner: Runner, batch_idx: int, *args: Any, **kw: Any) -> None:
            slow_device.has_arrived |= batch_idx == 11

    cfg = with_evaluation(saving(tmp_path))
    cfg.train_cfg.val_interval = 6
    runner = Runner.from_cfg(cfg)
    runner.register_hook(Arrives())

    def spoil_slowly(runner: Runner) -> None:
        slow_device.has_arrived = False
        spoil(runner)

    runner.register_hook(At({6: spoil_slowly}))
    with pytest.raises(NonFiniteError, match='iteration 6: spare'):
        runner.train()
    assert 'Iter(val) [10/20]' in logged_lines(runner)
    assert 'Iter(val) [20/20]' not in logged_lines(runner)


RANKS = """
import sys, os, torch
from pathlib import Path
import tests.conftest
import mmtempo
from mmtempo.logging.nonfinite import NonFiniteError
from tests.test_checkpoint.test_weights_check import *
rank, how = int(os.environ['RANK']), sys.argv[2]
torch.distributed.init_process_group('gloo')
cfg = saving(Path(sys.argv[1]), 40)
cfg.experiment_name = 'ranks'
cfg.default_hooks.logger.interval = 1000
bad = terminate if how == 'signal' else spoil
runner = Runner.from_cfg(cfg)
runner.register_hook(At({10 if how == 'signal' else 8: bad} if rank == 0 else {}))
try:
    runner.train()
except NonFiniteError as error:
    print(f'RANK {rank} ended after {runner.iter}: {str(error).splitlines()[0]}', flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


@pytest.mark.parametrize('how', ['save', 'signal'])
def test_processes_end_together(how: str, tmp_path: Path) -> None:
    """Only the main process has copies, and only its weights are bad."""
    outputs, _ = run_code_on_ranks(RANKS, tmp_path, how)
    ends = []
    for rank, output in enumerate(outputs):
        lines = [line for line in output.splitlines() if line.startswith(f'RANK {rank} ')]
        assert len(lines) == 1, output
        ends.append(lines[0].removeprefix(f'RANK {rank} ended after ').split(': ', 1))
    assert ends[0][0] == ends[1][0]
    found = re.fullmatch(
        r'Non-finite values at iteration (\d+): spare of the model, after finite losses.',
        ends[0][1],
    )
    assert found is not None, ends
    if how == 'signal':  # the processes choose the iteration; the runner counts from 0
        assert int(found[1]) == int(ends[0][0]) + 1 >= 10
    else:  # that of the bad copy, or of the next save if it looks before the copy was judged
        assert int(found[1]) in (8, 12)
    assert ends[1][1].endswith('in another process; see its log.')
    assert_kept(tmp_path, 'iter_8.pth' if how == 'signal' else 'iter_4.pth')
