"""Evaluations on a subset of the samples, between evaluations on all of them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.dataset import DefaultSampler
from mmengine.runner import IterBasedTrainLoop, Runner
from mmengine.runner.utils import calc_dynamic_intervals
from torch.utils.data import DataLoader

import tests.testing.interrupted_training  # noqa: F401  (registers StopAt and Interrupted)
from mmtempo.loaders import build_prefetch_dataloader
from mmtempo.loops.evaluation_subset import EvaluationSubset, SubsetSampler, evaluations_until
from tests.testing.evaluated_training import (
    OFTEN,
    evaluated,
    evaluations,
    kinds,
    of_evaluations,
    often,
)
from tests.testing.noisy import noisy_epochs
from tests.testing.toy import ToyDataset, train
from tests.testing.two_ranks import run_code_on_ranks


@pytest.mark.parametrize('stock', [False, True], ids=['sparse', 'stock'])
def test_each_nth_and_the_last_evaluation_use_all_samples(stock: bool, tmp_path: Path) -> None:
    cfg = often(tmp_path)
    if stock:
        cfg.default_hooks.update(
            runtime_info=dict(type='RuntimeInfoHook'),
            logger=dict(type='LoggerHook', interval=10, log_metric_by_epoch=False),
        )
    else:
        cfg.default_hooks.logger.log_metric_by_epoch = False
    runner = train(cfg)
    assert kinds(tmp_path) == OFTEN
    few = [one for one in evaluations(tmp_path) if len(one['samples']) == 10]
    assert len({tuple(one['samples']) for one in few}) == 1
    assert few[0]['samples'] == sorted(set(few[0]['samples']))
    assert [one['length'] for one in few] == [5] * 5
    assert len(runner.val_dataloader) == 20
    total = float(sum(few[0]['samples']))
    for line, (iteration, kind) in zip(of_evaluations(tmp_path), OFTEN):
        assert line.pop('step') == iteration
        if kind == 'full':
            assert line == dict(mIoU=60.0, aAcc=780.0)
        else:
            assert line == {'subset/mIoU': 90.0, 'subset/aAcc': total}
    # Metrics that were hidden from the logger are still in the hub.
    scalars = runner.message_hub.log_scalars
    assert scalars['val/mIoU'].data[0].tolist() == [60.0] * 3
    assert scalars['val/subset/mIoU'].data[0].tolist() == [90.0] * 5
    (log,) = tmp_path.rglob('*.log')
    lines = [line for line in log.read_text().splitlines() if 'mIoU: ' in line]
    assert ['subset/mIoU' in line for line in lines] == [kind != 'full' for _, kind in OFTEN]
    assert '[5/5]' in lines[0]
    assert '[20/20]' in lines[2]


def test_epochs_are_counted(tmp_path: Path) -> None:
    cfg = evaluated(noisy_epochs(tmp_path, epochs=5), subset=0.1, full_interval=2)
    train(cfg)
    expected = [(7, '4'), (14, 'full'), (21, '4'), (28, 'full'), (35, 'full')]
    assert kinds(tmp_path) == expected


def test_without_interval_only_the_last_evaluation_uses_all_samples(tmp_path: Path) -> None:
    train(often(tmp_path, **{'val_cfg.full_interval': None}))
    assert kinds(tmp_path) == [*((n, '10') for n in range(2, 15, 2)), (15, 'full')]


def test_evaluation_without_training_uses_all_samples(tmp_path: Path) -> None:
    metrics = Runner.from_cfg(often(tmp_path)).val()
    assert metrics == dict(mIoU=60.0, aAcc=780.0)
    assert kinds(tmp_path) == [(0, 'full')]


@pytest.mark.parametrize('kind', ['CheckpointHook', 'AsyncCheckpointHook'])
@pytest.mark.parametrize('best', ['mIoU', 'auto'])
def test_best_checkpoint_is_not_chosen_by_a_subset(kind: str, best: str, tmp_path: Path) -> None:
    cfg = often(tmp_path)
    cfg.default_hooks.checkpoint.update(type=kind, interval=2, save_best=best, rule='greater')
    runner = train(cfg)
    assert runner.message_hub.get_info('best_score') == 60.0
    assert [path.name for path in tmp_path.glob('best*')] == ['best_mIoU_iter_6.pth']
    # A checkpoint that is saved with a new best score still has all metrics.
    hub = torch.load(tmp_path / 'iter_6.pth', weights_only=False)['message_hub']
    assert set(hub['resumed_keys']) <= {*hub['log_scalars'], *hub['runtime_info']}
    assert hub['log_scalars']['val/mIoU'].current() == 60.0
    assert hub['log_scalars']['val/subset/mIoU'].current() == 90.0


def test_early_stopping_and_schedules_do_not_see_a_subset(tmp_path: Path) -> None:
    """Both would raise an error for a missing score."""
    cfg = often(tmp_path)
    cfg.custom_hooks.append(
        dict(type='EarlyStoppingHook', monitor='mIoU', strict=True, patience=2, rule='greater')
    )
    cfg.param_scheduler = [
        dict(type='ReduceOnPlateauLR', monitor='mIoU', rule='greater', patience=0, factor=0.1)
    ]
    runner = train(cfg)
    assert runner.iter == 15  # with a patience of two, the third full evaluation would stop it
    assert kinds(tmp_path) == OFTEN
    # The score is 60 three times: two evaluations without improvement.
    lr = runner.optim_wrapper.get_lr()['lr']
    assert lr == pytest.approx([0.002 * 0.1**2])


@pytest.mark.parametrize('seed', [3, None])
def test_resumed_training_has_the_same_subset(seed: int | None, tmp_path: Path) -> None:
    """Without a seed in the config, the checkpoint has it."""
    randomness = dict(seed=seed)
    cfg = often(tmp_path, randomness=randomness)
    cfg.custom_hooks.append(dict(type='StopAt', iteration=9))
    with pytest.raises(SystemExit):
        train(cfg)
    assert kinds(tmp_path) == OFTEN[:4]
    train(often(tmp_path, randomness=randomness, resume=True))
    assert kinds(tmp_path) == OFTEN
    few = {tuple(one['samples']) for one in evaluations(tmp_path) if len(one['samples']) == 10}
    assert len(few) == 1


def test_subset_larger_than_the_dataset_is_logged(tmp_path: Path) -> None:
    train(often(tmp_path, **{'val_cfg.subset': 41}))
    assert {kind for _, kind in kinds(tmp_path)} == {'full'}
    (log,) = tmp_path.rglob('*.log')
    assert 'val_cfg.subset=41 has no effect' in log.read_text()


@pytest.mark.parametrize('value', [0, -3, True, 1.0, 0.0, 1.5, float('nan'), '500', [5]])
def test_bad_subset_is_refused(value: Any, tmp_path: Path) -> None:
    cfg = often(tmp_path)
    cfg.val_cfg.subset = value
    with pytest.raises(ValueError, match='val_cfg.subset must be'):
        Runner.from_cfg(cfg).val()


@pytest.mark.parametrize('value', [0, -1, True, 2.0, '4'])
def test_bad_full_interval_is_refused(value: Any, tmp_path: Path) -> None:
    cfg = often(tmp_path)
    cfg.val_cfg.full_interval = value
    with pytest.raises(ValueError, match='val_cfg.full_interval must be'):
        Runner.from_cfg(cfg).val()


def test_full_interval_without_subset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='full_interval=3 needs val_cfg.subset'):
        Runner.from_cfg(often(tmp_path, **{'val_cfg.subset': None})).val()


def test_other_samplers_and_built_loaders_are_refused(tmp_path: Path) -> None:
    cfg = often(tmp_path)
    cfg.val_dataloader.sampler = dict(type='InfiniteSampler')
    with pytest.raises(ValueError, match='val_cfg.subset needs val_dataloader.sampler'):
        Runner.from_cfg(cfg).val()
    runner = Runner.from_cfg(often(tmp_path))
    runner._val_dataloader = DataLoader(ToyDataset())
    with pytest.raises(ValueError, match='val_cfg.subset needs val_dataloader as a dict'):
        runner.val()


@pytest.mark.parametrize('begin', [1, 7])
@pytest.mark.parametrize('dynamic', [None, [(20, 3), (41, 10)]])
def test_evaluations_until_equals_the_count_of_the_loop(begin: int, dynamic: Any) -> None:
    milestones, intervals = calc_dynamic_intervals(4, dynamic)
    loop = SimpleNamespace(
        val_begin=begin, dynamic_milestones=milestones, dynamic_intervals=intervals
    )
    count = 0
    for loop._iter in range(1, 100):
        IterBasedTrainLoop._decide_current_val_interval(loop)
        if loop._iter >= begin and loop._iter % loop.val_interval == 0:
            count += 1
            assert evaluations_until(loop._iter, loop) == count
    assert count > 9


@pytest.mark.parametrize('round_up', [True, False])
def test_subset_is_split_among_processes_as_in_stock(
    round_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = [3, 5, 8, 13, 21, 34, 36]
    shares = []
    for rank in range(3):
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda rank=rank: (rank, 3))
        sampler = SubsetSampler(chosen, round_up)
        places = DefaultSampler(chosen, shuffle=False, seed=0, round_up=round_up)
        shares.append(list(sampler))
        assert shares[-1] == [chosen[place] for place in places]
        assert len(sampler) == len(shares[-1])
    assert {one for share in shares for one in share} == set(chosen)


def test_loader_is_restored_after_an_error() -> None:
    cfg = dict(dataset=ToyDataset(), sampler=dict(type='DefaultSampler', shuffle=False))
    loader = build_prefetch_dataloader({**cfg, 'num_workers': 0, 'batch_size': 4}, seed=3)
    logger = SimpleNamespace(info=print, warning=print)
    runner: Any = SimpleNamespace(logger=logger, seed=3)
    subset = EvaluationSubset(runner, loader, 6, None)
    whole = loader.sampler, loader.batch_sampler
    with contextlib.suppress(KeyError), subset.limit_loader(runner):
        assert len(loader) == 2
        next(iter(loader))
        raise KeyError
    assert (loader.sampler, loader.batch_sampler) == whole
    assert sum(len(batch['inputs']) for batch in loader) == 40


RANKS = """
import os, sys
from pathlib import Path
import torch
import tests.conftest
import mmtempo
from tests.testing.toy import train
from tests.testing.evaluated_training import often
torch.distributed.init_process_group('gloo')
cfg = often(Path(sys.argv[1]), **{'val_cfg.subset': 9, 'randomness.diff_rank_seed': True})
cfg.experiment_name = 'ranks'
train(cfg)
torch.distributed.barrier()
torch.distributed.destroy_process_group()
os._exit(0)
"""


def test_two_processes_share_the_samples(tmp_path: Path) -> None:
    """With nine samples, one comes twice, and is not counted twice."""
    outputs, codes = run_code_on_ranks(RANKS, tmp_path)
    assert codes == [0, 0], outputs
    found = evaluations(tmp_path)
    assert kinds(tmp_path) == [(at, '9' if kind == '10' else kind) for at, kind in OFTEN]
    drawn = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:9]
    few = {tuple(one['samples']) for one in found if len(one['samples']) < 40}
    assert few == {tuple(sorted(drawn.tolist()))}
