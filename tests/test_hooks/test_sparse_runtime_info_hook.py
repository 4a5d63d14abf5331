"""Histories, synchronizations and non-finite values in trainings of a Runner."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmtempo.checkpoint.loading import load_from_local
from mmtempo.doctor.sync_census import SyncCensus
from mmtempo.hooks.sparse_runtime_info_hook import SparseRuntimeInfoHook
from mmtempo.logging.bounded_history import BoundedHistory
from mmtempo.logging.nonfinite import NonFiniteError
from mmtempo.logging.scalar_buffer import MOST_ROWS, ScalarBuffer
from tests.testing.toy import SPARSE, STOCK, by_epoch, config, logged, train, with_evaluation
from tests.testing.two_ranks import run_code_on_ranks


class Each(Hook):
    """Call a function after each iteration, before a line is logged."""

    priority = 'HIGH'

    def __init__(self, work: Any) -> None:
        self.work = work

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        self.work(runner)


def test_history_has_the_value_of_the_current_iteration(tmp_path: Path) -> None:
    expected, found = [], []
    for hooks, values in ((STOCK, expected), (SPARSE, found)):
        cfg = config(tmp_path / hooks['logger'], hooks, **{'train_cfg.max_iters': 25})
        runner = Runner.from_cfg(cfg)
        read = Each(lambda r, v=values: v.append(r.message_hub.get_scalar('train/loss').current()))
        runner.register_hook(read)
        runner.train()
    assert found == expected
    assert len(found) == 25


def test_value_of_another_hook_keeps_its_order(tmp_path: Path) -> None:
    histories = []
    for hooks in (STOCK, SPARSE):
        cfg = config(tmp_path / hooks['logger'], hooks, **{'train_cfg.max_iters': 12})
        runner = Runner.from_cfg(cfg)
        runner.register_hook(
            Each(lambda r: r.message_hub.update_scalar('train/loss', 1000.0 + r.iter))
        )
        runner.train()
        histories.append(runner.message_hub.get_scalar('train/loss').data[0].tolist())
    assert histories[0] == histories[1]
    assert logged(tmp_path / 'LoggerHook') == logged(tmp_path / 'SparseLoggerHook')
    assert len(histories[0]) == 24


@pytest.mark.slow
def test_memory_does_not_grow_without_a_logger(tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE, **{'train_cfg.max_iters': 3 * MOST_ROWS})
    cfg.default_hooks.update(logger=None, checkpoint=None)
    most = 0

    def look(runner: Runner) -> None:
        nonlocal most
        rows = ScalarBuffer.of(runner.message_hub)._rows
        most = max(most, len(rows) + sum(len(sent.rows) for sent in rows._underway))

    runner = Runner.from_cfg(cfg)
    runner.register_hook(Each(look))
    runner.train()
    assert MOST_ROWS <= most < 2 * MOST_ROWS
    for key, history in runner.message_hub.log_scalars.items():
        assert type(history) is BoundedHistory
        assert len(history.data[0]) == 100
        assert history.total == 3 * MOST_ROWS or key == 'train/acc'


def test_history_of_an_evaluation_holds_all_its_batches(tmp_path: Path) -> None:
    cfg = with_evaluation(config(tmp_path, SPARSE, **{'train_cfg.max_iters': 200}))
    cfg.train_cfg.val_interval = 20
    cfg.default_hooks.runtime_info.history_length = 5
    cfg.default_hooks.timer = dict(type='IterTimerHook')
    runner = train(cfg)
    # 20 batches, and the one value more that mmengine's mean over an evaluation asks for.
    assert runner.message_hub.get_scalar('val/time').max_length == 21
    assert runner.message_hub.get_scalar('val/seen').data[0].tolist()[-1] == 40.0
    assert runner.message_hub.get_scalar('train/loss').max_length == 10


def bad(tmp_path: Path, action: str = 'stop', **options: Any) -> Any:
    cfg = config(tmp_path, SPARSE, **{'train_cfg.max_iters': 60, **options})
    cfg.default_hooks.runtime_info.on_nonfinite = action
    cfg.default_hooks.checkpoint.interval = 20
    return cfg


def checkpoints(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob('iter_*.pth'))


@pytest.mark.parametrize('iteration', [21, 25, 30, 31, 39, 40])
def test_nan_stops_the_run_and_keeps_the_checkpoint(iteration: int, tmp_path: Path) -> None:
    cfg = bad(tmp_path, **{'model.nan_at': (iteration,)})
    cfg.default_hooks.checkpoint.max_keep_ckpts = 1  # stock deletes before it writes
    with pytest.raises(NonFiniteError) as error:
        train(cfg)
    text = str(error.value)
    assert f'at iteration {iteration}: loss nan, loss_a nan, loss_b nan' in text
    assert 'iter_20.pth, is from before' in text
    assert checkpoints(tmp_path) == ['iter_20.pth']
    state = load_from_local(f'{tmp_path}/iter_20.pth', 'cpu')['state_dict']
    assert all(value.isfinite().all() for value in state.values())
    # Reported at the next log point: no later line is logged.
    assert logged(tmp_path)[-1]['step'] <= -(-iteration // 10) * 10


def test_nan_stops_before_an_evaluation(tmp_path: Path) -> None:
    cfg = with_evaluation(bad(tmp_path, **{'model.nan_at': (12,)}))
    cfg.default_hooks.logger.interval = 50
    cfg.train_cfg.val_interval = 15
    with pytest.raises(NonFiniteError, match='iteration 12'):
        train(cfg)
    assert 'seen' not in log_text(tmp_path)


def test_nan_stops_before_an_epochs_checkpoint(tmp_path: Path) -> None:
    cfg = by_epoch(bad(tmp_path, **{'model.nan_at': (33,)}), epochs=3)
    cfg.default_hooks.checkpoint.update(interval=1, max_keep_ckpts=1)
    cfg.default_hooks.logger.interval = 1000
    with pytest.raises(NonFiniteError, match='iteration 33'):
        train(cfg)
    assert sorted(path.name for path in tmp_path.glob('*.pth')) == ['epoch_1.pth']


def test_nan_of_the_last_iteration_fails_the_run(tmp_path: Path) -> None:
    cfg = bad(tmp_path, **{'model.nan_at': (17,), 'train_cfg.max_iters': 17})
    with pytest.raises(NonFiniteError, match=r'(?s)iteration 17.*No checkpoint has been written'):
        train(cfg)
    assert not checkpoints(tmp_path)


@pytest.mark.parametrize('wrapper', ['OptimWrapper', 'SparseOptimWrapper'])
@pytest.mark.parametrize('clips', [False, True])
def test_weights_that_are_not_finite_are_never_saved(
    wrapper: str, clips: bool, tmp_path: Path
) -> None:
    cfg = bad(tmp_path, **{'model.bad_gradient_at': (40,), 'optim_wrapper.type': wrapper})
    cfg.default_hooks.checkpoint.max_keep_ckpts = 1
    if clips:
        cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
    with pytest.raises(NonFiniteError, match=r'(?s)iteration 40: .*iter_20.pth, is from before'):
        train(cfg)
    assert checkpoints(tmp_path) == ['iter_20.pth']


def test_bad_weights_at_the_end_fail_the_run(tmp_path: Path) -> None:
    with pytest.raises(
        NonFiniteError,
        match='iteration 60: net.0.weight and 5 more of the model, after finite losses',
    ):
        train(bad(tmp_path, **{'model.bad_gradient_at': (60,)}))
    assert checkpoints(tmp_path) == ['iter_20.pth', 'iter_40.pth']


def test_nan_stops_the_run_with_save_begin(tmp_path: Path) -> None:
    cfg = bad(tmp_path, **{'model.nan_at': (23,)})
    cfg.default_hooks.checkpoint.update(interval=10, save_begin=5, max_keep_ckpts=1)
    cfg.default_hooks.logger.interval = 100
    with pytest.raises(NonFiniteError, match=r'(?s)iteration 23: .*iter_15.pth, is from before'):
        train(cfg)
    assert checkpoints(tmp_path) == ['iter_15.pth']


class Saver(Hook):
    """A hook that saves but is no `CheckpointHook`."""

    def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
        if runner.iter == 29:
            runner.save_checkpoint(runner.work_dir, 'mine.pth')


def test_nan_stops_a_save_of_another_hook(tmp_path: Path) -> None:
    cfg = bad(tmp_path, **{'model.nan_at': (25,)})
    cfg.default_hooks.logger.interval = 100
    runner = Runner.from_cfg(cfg)
    runner.register_hook(Saver())
    with pytest.raises(NonFiniteError, match='iteration 25'):
        runner.train()
    assert not (tmp_path / 'mine.pth').exists()


def test_nan_stops_the_run_with_the_stock_logger(tmp_path: Path) -> None:
    cfg = bad(tmp_path, **{'model.nan_at': (3,)})
    cfg.default_hooks.logger.type = 'LoggerHook'
    cfg.default_hooks.checkpoint = None
    with pytest.raises(NonFiniteError, match='iteration 3'):
        train(cfg)
    assert [line['step'] for line in logged(tmp_path)] == [10]


def test_hub_does_not_keep_the_runner_alive(tmp_path: Path) -> None:
    runner = train(config(tmp_path, SPARSE, **{'train_cfg.max_iters': 12}))
    hub, alive = runner.message_hub, weakref.ref(runner.model)
    assert ScalarBuffer.of(hub) is None
    history = hub.get_scalar('train/loss')
    history.update(5.0)  # takes effect at once
    assert history.current() == 5.0
    del runner
    gc.collect()
    assert alive() is None


def test_hub_can_be_filled_after_its_runner_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second training in the same notebook, after one that failed."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(SparseRuntimeInfoHook, 'after_train_iter', fail)
    runner = Runner.from_cfg(config(tmp_path, SPARSE))
    with pytest.raises(ZeroDivisionError):
        runner.train()
    hub, gone = runner.message_hub, weakref.ref(runner)
    scalars = ScalarBuffer.of(hub)
    assert scalars is not None
    del runner
    sys.last_value = None  # type: ignore[assignment]
    gc.collect()
    assert gone() is None
    scalars.note('train/of_another', 0.5)
    scalars.fetch()
    assert hub.get_scalar('train/of_another').current() == 0.5


@pytest.mark.parametrize('key', ['loss', 'time'])
def test_removed_history_is_created_again(key: str, tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE, **{'train_cfg.max_iters': 30})
    cfg.default_hooks.timer = dict(type='ThroughputMonitorHook')
    runner = Runner.from_cfg(cfg)
    runner.register_hook(
        Each(lambda r: r.message_hub.log_scalars.pop(f'train/{key}', None) if r.iter == 14 else 0)
    )
    runner.train()
    (path,) = tmp_path.rglob('scalars.json')
    assert [(key in json.loads(line)) for line in path.read_text().splitlines()] == [True] * 3


class SavesNothing(CheckpointHook):
    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        pass

    def after_train_epoch(self, runner: Runner) -> None:
        pass


def test_weights_are_judged_before_a_save_of_a_later_registered_hook(tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE, **{'train_cfg.max_iters': 12})
    cfg.default_hooks.checkpoint = None
    runner, looked = Runner.from_cfg(cfg), []
    saver = SavesNothing(interval=4, by_epoch=False)
    runner.register_hook(Each(lambda r: r.register_hook(saver) if r.iter == 4 else None))
    (hook,) = (one for one in runner.hooks if isinstance(one, SparseRuntimeInfoHook))
    look = hook._look

    def note(runner: Runner, together: bool = True) -> None:
        looked.append((runner.iter + 1, together))
        look(runner, together)

    hook._look = note  # type: ignore[method-assign]
    runner.train()
    assert (8, True) in looked
    assert (4, True) not in looked


RANKS = """
import sys, os, torch
from pathlib import Path
import tests.conftest
from mmengine.dist import init_dist
import mmtempo
from mmtempo.logging.nonfinite import NonFiniteError
from tests.testing.toy import SPARSE, config, train
rank = int(os.environ['RANK'])
torch.distributed.init_process_group('gloo')
nan_at = (20,) if rank == 1 else ()
cfg = config(Path(sys.argv[1]), SPARSE, **{'train_cfg.max_iters': 40, 'model.nan_at': nan_at})
cfg.experiment_name = 'ranks'
cfg.default_hooks.checkpoint.update(interval=10, max_keep_ckpts=1)
cfg.default_hooks.logger.interval = 1000
try:
    train(cfg)
except NonFiniteError as error:
    print(f'RANK {rank}: {str(error).splitlines()[0]}', flush=True)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_all_processes_stop_together(tmp_path: Path) -> None:
    """Otherwise rank 0, whose loss is finite, would replace the good checkpoint."""
    outputs, _ = run_code_on_ranks(RANKS, tmp_path)
    assert 'RANK 0: Non-finite values at iteration 20: in another process' in outputs[0], outputs[0]
    assert 'RANK 1: Non-finite values at iteration 20: loss nan' in outputs[1], outputs[1]
    assert checkpoints(tmp_path) == ['iter_10.pth']


def log_text(tmp_path: Path) -> str:
    (path,) = tmp_path.rglob('*.log')
    return path.read_text()


def test_warn_continues(tmp_path: Path) -> None:
    train(bad(tmp_path, 'warn', **{'model.nan_at': (25,)}))
    assert 'Non-finite values at iteration 25: loss nan' in log_text(tmp_path)
    assert checkpoints(tmp_path) == ['iter_20.pth', 'iter_40.pth', 'iter_60.pth']


def test_skip_omits_the_update(tmp_path: Path) -> None:
    cfg = bad(
        tmp_path, 'skip', **{'model.nan_at': (25, 26), 'optim_wrapper.type': 'SparseOptimWrapper'}
    )
    runner = train(cfg)
    assert '2 updates were skipped because of non-finite gradients, at iterations 25, 26.' in (
        log_text(tmp_path)
    )
    assert all(value.isfinite().all() for value in runner.model.parameters())
    assert logged(tmp_path)[-1]['loss'] < 10


@pytest.mark.parametrize('counts', [1, 2])
def test_skip_omits_running_statistics(counts: int, tmp_path: Path) -> None:
    cfg = bad(
        tmp_path,
        'skip',
        **{
            'model.bad_input_at': (25,),
            'optim_wrapper.type': 'SparseOptimWrapper',
            'optim_wrapper.accumulative_counts': counts,
        },
    )
    runner = train(cfg)
    assert 'updates were skipped' in log_text(tmp_path)
    assert all(value.isfinite().all() for value in runner.model.state_dict().values())


def test_skip_needs_a_sparse_wrapper(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="needs optim_wrapper.type='SparseOptimWrapper'"):
        train(bad(tmp_path, 'skip'))


def test_non_finite_gradient_is_reported_with_clipping(tmp_path: Path) -> None:
    cfg = bad(
        tmp_path, **{'model.bad_gradient_at': (27,), 'optim_wrapper.type': 'SparseOptimWrapper'}
    )
    cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
    with pytest.raises(
        NonFiniteError, match=r'iteration 27: losses finite; gradient norm (inf|nan)'
    ):
        train(cfg)


def test_wrong_arguments_are_errors_that_name_the_key() -> None:
    with pytest.raises(ValueError, match='on_nonfinite'):
        SparseRuntimeInfoHook(on_nonfinite='halt')
    for wrong in (0, 'many', 1.5, True):
        with pytest.raises(ValueError, match='history_length must be an integer of at least 1'):
            SparseRuntimeInfoHook(history_length=wrong)


def test_global_window_is_logged_as_running_mean(tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE, **{'train_cfg.max_iters': 1})
    cfg.log_processor.custom_cfg = [
        dict(data_src='loss', log_name='all', method_name='mean', window_size='global')
    ]
    train(cfg)
    assert "'all' over window_size='global' is computed as a running mean" in log_text(tmp_path)


def test_no_synchronization_between_log_points(tmp_path: Path) -> None:
    cfg = config(tmp_path, SPARSE, **{'train_cfg.max_iters': 30})
    cfg.default_hooks.update(checkpoint=None)
    runner = Runner.from_cfg(cfg)
    runner.call_hook('before_run')
    found: list = []

    class Counting(Hook):
        priority = 'LOWEST'

        def before_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
            self.census = SyncCensus()
            self.census.__enter__()

        def after_train_iter(self, runner: Runner, *args: Any, **kwargs: Any) -> None:
            self.census.__exit__(None, None, None)
            syncs = self.census.waits
            found.append([sync for sync in syncs if 'toy.py' not in sync.where])

    runner.register_hook(Counting())
    runner.train()
    at_log_points = [len(syncs) for syncs in found[9:29:10]]
    assert at_log_points == [2, 2]  # floats and integers, one copy each
    assert [syncs for number, syncs in enumerate(found[:29], 1) if number % 10] == [[]] * 27
