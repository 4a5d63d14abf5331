"""Check shapes, batches and learning rates of each iteration, with and without a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.testing.progressive import (
    CONFIGS,
    in_epochs,
    log_text,
    progressive,
    steps,
    stopped,
)
from tests.testing.toy import train, weights


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('kind', CONFIGS)
def test_each_stage_has_its_shapes_and_batches(kind: str, workers: int, tmp_path: Path) -> None:
    runner = train(CONFIGS[kind](tmp_path, workers=workers))
    found = steps(tmp_path)
    assert len(found) == runner.iter == 17
    assert [one['shapes'] for one in found] == [[[3, 16, 24]]] * 3 + [[[3, 32, 48]]] * 14
    assert [len(one['numbers']) for one in found] == [8] * 3 + [4] * 14
    # Padded to the crop, not to the configured size.
    assert runner.model.shapes == [(8, 3, 16, 24)] * 3 + [(4, 3, 32, 48)] * 14
    # Each sample is used once in an epoch, also in the one with the change of stage.
    for epoch in (found[:7], found[7:]):
        assert sorted(number for one in epoch for number in one['numbers']) == list(range(40))
    if kind == 'epochs':
        assert [one['epoch'] for one in found] == [0] * 7 + [1] * 10
    assert [one['lr'] for one in found] == [[2e-6]] * 3 + [[1e-6]] * 14
    text = log_text(tmp_path)
    assert 'Stage 1 of 2, after 0 iterations: RandomCrop.crop_size (40, 56) -> (16, 24), ' in text
    assert (
        'Stage 2 of 2, after 3 iterations: RandomCrop.crop_size (16, 24) -> (32, 48), '
        'data_preprocessor.size (16, 24) -> (32, 48), batch_size 8 -> 4, '
        'learning rate x 2 -> x 1' in text
    )


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize(
    'iteration', [2, 3, *(pytest.param(one, marks=pytest.mark.slow) for one in (4, 10))]
)
@pytest.mark.parametrize('kind', CONFIGS)
def test_resumed_run_equals_uninterrupted_run(
    kind: str, iteration: int, workers: int, tmp_path: Path
) -> None:
    """Stopped within each stage, and where a stage begins."""
    whole, again = tmp_path / 'whole', tmp_path / 'again'
    schedule = dict(param_scheduler=[dict(type='PolyLR', eta_min=1e-8, end=20, by_epoch=False)])
    trained = weights(train(CONFIGS[kind](whole, **schedule)))
    stopped(CONFIGS[kind](again, workers=workers, **schedule), iteration)
    assert len(steps(again)) == iteration
    runner = train(CONFIGS[kind](again, workers=workers, resume=True, **schedule))
    assert steps(again) == steps(whole)
    for key, value in weights(runner).items():
        assert torch.equal(value, trained[key]), key


@pytest.mark.parametrize('sizes', [(4, 8), (8, 4)])
def test_rest_of_an_epoch_below_a_batch_is_dropped(sizes: tuple[int, int], tmp_path: Path) -> None:
    """With drop_last, where batches are larger in the other stage or in the config."""
    whole, again = tmp_path / 'whole', tmp_path / 'again'
    first, second = sizes
    stages = [dict(begin=0, batch_size=first), dict(begin=9, batch_size=second)]
    options = {'train_dataloader.drop_last': True, 'train_dataloader.batch_size': 8}
    train(in_epochs(whole, stages, **options))
    found = steps(whole)
    epochs = [[one['numbers'] for one in found if one['epoch'] == epoch] for epoch in (0, 1)]
    if first == 4:  # nine batches of four, then four samples are left, less than a batch of eight
        assert [list(map(len, epoch)) for epoch in epochs] == [[4] * 9, [8] * 5]
    else:  # five batches of eight; four of eight and two of four
        assert [list(map(len, epoch)) for epoch in epochs] == [[8] * 5, [8] * 4 + [4] * 2]
    for epoch in epochs:
        drawn = [number for numbers in epoch for number in numbers]
        assert len(set(drawn)) == len(drawn)
    for iteration in (8, 9, 10):
        work = again / str(iteration)
        stopped(in_epochs(work, stages, **options), iteration)
        train(in_epochs(work, stages, resume=True, **options))
        assert steps(work) == found


def test_resume_does_not_drop_a_rest_below_the_configured_batch(tmp_path: Path) -> None:
    """The loop seeks its position before the hook sets the batch size of the stage."""
    whole, again = tmp_path / 'whole', tmp_path / 'again'
    stages = [dict(begin=0, batch_size=4)]
    options = {'train_dataloader.drop_last': True, 'train_dataloader.batch_size': 8}
    train(in_epochs(whole, stages, **options))
    assert len(steps(whole)) == 20
    stopped(in_epochs(again, stages, **options), 9)
    train(in_epochs(again, stages, resume=True, **options))
    assert steps(again) == steps(whole)


def test_stages_begin_by_updates_with_accumulation(tmp_path: Path) -> None:
    """With `count='updates'` the loop counts updates, and `begin` does as well."""
    cfg = progressive(tmp_path, **{'train_cfg.max_iters': 7, 'train_cfg.count': 'updates'})
    cfg.optim_wrapper.update(type='SparseOptimWrapper', accumulative_counts=2)
    runner = train(cfg)
    sizes = [8] * 6 + [4] * 8
    assert [shape[0] for shape in runner.model.shapes] == sizes
    assert [len(one['numbers']) for one in steps(tmp_path)] == sizes[::2]


def test_scale_and_pipeline_attributes(tmp_path: Path) -> None:
    stages = [
        dict(begin=1, scale=(32, 24), pipeline=dict(RandomCrop=dict(crop_size=[8, 40]))),
        dict(begin=3, crop_size=16, pipeline={'PackSegInputs': dict(meta_keys=['number'])}),
    ]
    cfg = progressive(tmp_path, stages, **{'train_cfg.max_iters': 5})
    cfg.train_dataloader.dataset.pipeline.insert(1, dict(type='Resize', scale=(64, 48)))
    runner = train(cfg)
    found = [one['shapes'] for one in steps(tmp_path)]
    assert found == [[[3, 40, 56]]] + [[[3, 8, 32]]] * 2 + [[[3, 16, 16]]] * 2
    pack = runner.train_dataloader.dataset.pipeline.transforms[-1]
    assert pack.meta_keys == ('number',)


@pytest.mark.parametrize('workers', [0, 1])
def test_cache_is_rebuilt_if_a_cached_transform_changes(workers: int, tmp_path: Path) -> None:
    """`CachedDataset` caches resized samples, until the size changes."""
    stages = [dict(begin=2, crop_size=(16, 16)), dict(begin=4, scale=(32, 24))]
    cfg = progressive(tmp_path, stages, workers, **{'train_cfg.max_iters': 6})
    inner = cfg.train_dataloader.dataset
    inner.pipeline.insert(1, dict(type='Resize', scale=(12, 64)))
    cfg.train_dataloader.dataset = dict(type='CachedDataset', until='Resize', dataset=inner)
    runner = train(cfg)
    found = [one['shapes'] for one in steps(tmp_path)]
    assert found == [[[3, 40, 12]]] * 2 + [[[3, 16, 12]]] * 2 + [[[3, 16, 16]]] * 2
    assert type(runner.train_dataloader.dataset.pipeline).__name__ == 'CachedPipeline'
    assert log_text(tmp_path).count('CachedDataset: cache:') == 2


@pytest.mark.parametrize('kind', ['IterBasedTrainLoop', 'EpochBasedTrainLoop'])
def test_stock_loops_are_refused(kind: str, tmp_path: Path) -> None:
    cfg = progressive(tmp_path)
    cfg.train_cfg = dict(type=kind, max_iters=9)
    if kind == 'EpochBasedTrainLoop':
        cfg.train_cfg = dict(type=kind, max_epochs=2)
    with pytest.raises(ValueError, match=f'train_cfg.type=.* found {kind} with a DataLoader'):
        train(cfg)


def test_without_stages_any_loop_trains(tmp_path: Path) -> None:
    train(progressive(tmp_path / 'none', [], **{'train_cfg.type': 'IterBasedTrainLoop'}))
    assert 'Stage ' not in log_text(tmp_path / 'none')
    assert len(steps(tmp_path / 'none')) == 17
