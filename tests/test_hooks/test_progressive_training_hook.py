"""Crops, batches and learning rates at each iteration, however often the run ends and goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, HOOKS, MODELS, TRANSFORMS
from mmengine.runner import Runner
from torch.utils.data import BatchSampler

import tests.testing.interrupted_training  # noqa: F401  (registers StopAt)
from mmtempo.hooks.progressive_training_hook import ProgressiveTrainingHook
from mmtempo.progressive.live_transforms import LiveTransforms
from tests.testing.toy import config, logged, train, weights

SPARSE = dict(runtime_info='SparseRuntimeInfoHook', logger='SparseLoggerHook')
KEY = r'custom_hooks.ProgressiveTrainingHook.stages'


@TRANSFORMS.register_module()
class DrawPicture(BaseTransform):
    """No two parts of it are the same."""

    def transform(self, results: dict) -> dict:
        pixels = np.arange(48 * 64 * 3).reshape(48, 64, 3) * 7 + results['number'] * 13
        results['img'] = (pixels % 251).astype(np.uint8)
        results['gt_seg_map'] = results['img'][..., 0] % 4
        results['seg_fields'] = ['gt_seg_map']
        results['img_shape'] = results['img'].shape[:2]
        return results


@DATASETS.register_module()
class GrowingPictures(BaseDataset):
    """Forty of 64 x 48."""

    def load_data_list(self) -> list[dict]:
        return [dict(number=number) for number in range(40)]


@MODELS.register_module()
class Looker(BaseModel):
    """Learns a little, and remembers which shapes it was given."""

    def __init__(self, data_preprocessor: dict) -> None:
        super().__init__(data_preprocessor)
        self.conv = torch.nn.Conv2d(3, 2, 3)
        self.shapes: list[tuple] = []

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'tensor') -> Any:
        self.shapes.append(tuple(inputs.shape))
        labels = torch.stack([one.gt_sem_seg.data for one in data_samples])
        return dict(loss=self.conv(inputs).square().mean() + labels.float().mean())


@HOOKS.register_module()
class Steps(Hook):
    """Writes down what each iteration is given, and its learning rates."""

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        images = [image.numpy() for image in data_batch['inputs']]
        content = b''.join(image.tobytes() for image in images)
        entry = dict(
            iter=runner.iter,
            epoch=runner.epoch,
            shapes=sorted({image.shape for image in images}),
            numbers=[one.number for one in data_batch['data_samples']],
            content=hashlib.sha256(content).hexdigest()[:12],
            lr=[group['lr'] for group in runner.optim_wrapper.param_groups],
        )
        with open(f'{runner.work_dir}/steps', 'a') as file:
            file.write(json.dumps(entry) + '\n')


def steps(work: Path) -> list[dict]:
    """Of all iterations; those of an earlier attempt were the same."""
    found: dict[int, dict] = {}
    for line in (work / 'steps').read_text().splitlines():
        entry = json.loads(line)
        assert found.setdefault(entry['iter'], entry) == entry
    assert list(found) == list(range(len(found)))
    return list(found.values())


STAGES = [
    dict(begin=0, crop_size=(16, 24), batch_size=8),
    dict(begin=3, crop_size=[32, 48], batch_size=4),
]


def progressive(work: Path, stages: Any = STAGES, workers: int = 0, **options: Any) -> Config:
    """Seventeen iterations: two epochs with these stages."""
    cfg = config(work, SPARSE)
    cfg.default_scope = 'mmseg'
    cfg.model = dict(
        type='Looker', data_preprocessor=dict(type='SegDataPreProcessor', size=(40, 56))
    )
    cfg.train_dataloader.update(
        batch_size=4,
        num_workers=workers,
        dataset=dict(
            type='GrowingPictures',
            pipeline=[
                dict(type='DrawPicture'),
                dict(type='RandomCrop', crop_size=(40, 56)),
                dict(type='PackSegInputs', meta_keys=('number', 'img_shape')),
            ],
        ),
    )
    cfg.optim_wrapper.optimizer.lr = 1e-6
    cfg.train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=17, val_interval=100000)
    cfg.default_hooks.checkpoint = dict(type='AsyncCheckpointHook', by_epoch=False, interval=100)
    cfg.default_hooks.logger.interval = 1
    cfg.custom_hooks = [dict(type='Steps')]
    if stages is not None:
        cfg.custom_hooks.append(dict(type='ProgressiveTrainingHook', stages=stages))
    cfg.merge_from_dict(options)
    return cfg


def in_epochs(work: Path, stages: Any = STAGES, workers: int = 0, **options: Any) -> Config:
    cfg = progressive(work, stages, workers)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.train_cfg = dict(type='PrefetchEpochBasedTrainLoop', max_epochs=2)
    cfg.log_processor.by_epoch = True
    cfg.merge_from_dict(options)
    return cfg


CONFIGS = dict(iterations=progressive, epochs=in_epochs)


def stopped(cfg: Config, iteration: int) -> None:
    cfg.custom_hooks.append(dict(type='StopAt', iteration=iteration))
    with pytest.raises(SystemExit):
        train(cfg)


def log_text(work: Path) -> str:
    (path,) = work.rglob('*.log')
    return path.read_text()


@pytest.mark.parametrize('workers', [0, 2])
@pytest.mark.parametrize('kind', CONFIGS)
def test_each_stage_has_its_shapes(kind: str, workers: int, tmp_path: Path) -> None:
    runner = train(CONFIGS[kind](tmp_path, workers=workers))
    found = steps(tmp_path)
    assert len(found) == runner.iter == 17
    assert [one['shapes'] for one in found] == [[[3, 16, 24]]] * 3 + [[[3, 32, 48]]] * 14
    assert [len(one['numbers']) for one in found] == [8] * 3 + [4] * 14
    # Padded to the crop, and not to what the config has.
    assert runner.model.shapes == [(8, 3, 16, 24)] * 3 + [(4, 3, 32, 48)] * 14
    # The change is within an epoch, of which each sample comes once.
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
def test_resumed_as_if_nothing_had_been(
    kind: str, iteration: int, workers: int, tmp_path: Path
) -> None:
    """In the middle of each stage, and just where one begins."""
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
def test_what_is_left_of_an_epoch_is_too_few(sizes: tuple[int, int], tmp_path: Path) -> None:
    """With drop_last, of batches that are larger in the other stage, or in the config."""
    whole, again = tmp_path / 'whole', tmp_path / 'again'
    first, second = sizes
    stages = [dict(begin=0, batch_size=first), dict(begin=9, batch_size=second)]
    options = {'train_dataloader.drop_last': True, 'train_dataloader.batch_size': 8}
    train(in_epochs(whole, stages, **options))
    found = steps(whole)
    epochs = [[one['numbers'] for one in found if one['epoch'] == epoch] for epoch in (0, 1)]
    if first == 4:  # nine of four, then four samples are left of which there is no batch
        assert [list(map(len, epoch)) for epoch in epochs] == [[4] * 9, [8] * 5]
    else:  # five of eight, four of eight, then two of four
        assert [list(map(len, epoch)) for epoch in epochs] == [[8] * 5, [8] * 4 + [4] * 2]
    for epoch in epochs:
        drawn = [number for numbers in epoch for number in numbers]
        assert len(set(drawn)) == len(drawn)
    for iteration in (8, 9, 10):
        work = again / str(iteration)
        stopped(in_epochs(work, stages, **options), iteration)
        train(in_epochs(work, stages, resume=True, **options))
        assert steps(work) == found


def test_the_configs_larger_batch_ends_no_epoch(tmp_path: Path) -> None:
    """It is what the loop knows, when it goes to its place."""
    whole, again = tmp_path / 'whole', tmp_path / 'again'
    stages = [dict(begin=0, batch_size=4)]
    options = {'train_dataloader.drop_last': True, 'train_dataloader.batch_size': 8}
    train(in_epochs(whole, stages, **options))
    assert len(steps(whole)) == 20
    stopped(in_epochs(again, stages, **options), 9)
    train(in_epochs(again, stages, resume=True, **options))
    assert steps(again) == steps(whole)


SCHEDULES = dict(
    warm_up=[
        dict(type='LinearLR', start_factor=0.1, begin=0, end=6, by_epoch=False),
        dict(type='PolyLR', eta_min=1e-7, power=0.9, begin=6, end=17, by_epoch=False),
    ],
    milestones=[
        dict(type='LinearLR', start_factor=0.1, begin=0, end=6, by_epoch=False),
        dict(type='MultiStepLR', milestones=[5, 11], by_epoch=False),
    ],
    cosine=[dict(type='CosineAnnealingLR', eta_min=1e-7, T_max=10, end=17, by_epoch=False)],
    one_cycle=[dict(type='OneCycleLR', eta_max=1e-5, total_steps=20, by_epoch=False)],
)


@pytest.mark.parametrize('name', SCHEDULES)
def test_schedules_keep_their_shape(name: str, tmp_path: Path) -> None:
    """Whatever they compute a rate from: the last one, the first one, a minimum."""
    plain, staged = tmp_path / 'plain', tmp_path / 'staged'
    options: dict[str, Any] = dict(param_scheduler=SCHEDULES[name])
    stages = [dict(begin=2, lr_scale=0.3), dict(begin=9, lr_scale=3)]
    train(progressive(plain, None, **options))
    runner = train(progressive(staged, stages, **options))
    scheduled = [one['lr'][0] for one in steps(plain)]
    factors = [1.0] * 2 + [0.3] * 7 + [3.0] * 8
    expected = [rate * factor for rate, factor in zip(scheduled, factors)]
    assert [one['lr'][0] for one in steps(staged)] == expected
    assert [line['lr'] for line in logged(staged) if 'lr' in line] == expected
    assert len(set(scheduled)) > 2
    # What is saved is the schedule's.
    assert runner.optim_wrapper.get_lr() == saved_rates(plain)


def saved_rates(work: Path) -> dict:
    """Of the checkpoint at the end."""
    groups = torch.load(work / 'iter_17.pth', weights_only=False)['optimizer']['param_groups']
    return dict(lr=[group['lr'] for group in groups])


def test_the_factor_is_on_the_update(tmp_path: Path) -> None:
    half = {'optim_wrapper.optimizer.lr': 5e-7}
    by_config = weights(train(progressive(tmp_path / 'config', None, **half)))
    stages = [dict(begin=0, lr_scale=0.5)]
    by_stage = weights(train(progressive(tmp_path / 'stage', stages)))
    for key, value in by_stage.items():
        assert torch.equal(value, by_config[key]), key


def test_rules_of_the_batch(tmp_path: Path) -> None:
    stages = [
        dict(begin=0, batch_size=8),
        dict(begin=2, lr_scale='sqrt'),
        dict(begin=4, batch_size=1, lr_scale=2.0),
        dict(begin=6),
    ]
    train(progressive(tmp_path, stages, **{'train_cfg.max_iters': 8}))
    found = steps(tmp_path)
    expected = [2e-6] * 2 + [1e-6 * 2**0.5] * 2 + [2e-6] * 2 + [0.25e-6] * 2
    assert [one['lr'][0] for one in found] == expected
    assert [len(one['numbers']) for one in found] == [8] * 4 + [1] * 4


@HOOKS.register_module()
class SaveWithin(Hook):
    """In the middle of an iteration, as a loop does that gets no more batches of an update."""

    def before_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        if runner.iter == 4:
            runner.save_checkpoint(runner.work_dir, 'within.pth', by_epoch=False)


@pytest.mark.parametrize('base', [False, True])
def test_saved_within_an_iteration(base: bool, tmp_path: Path) -> None:
    cfg = progressive(tmp_path, [dict(begin=2, lr_scale=0.5)])
    if base:  # a rate that belongs to no group is logged
        cfg.optim_wrapper.constructor = 'DefaultOptimWrapperConstructor'
        cfg.optim_wrapper.paramwise_cfg = dict(bias_lr_mult=2.0)
    cfg.custom_hooks.append(dict(type='SaveWithin'))
    runner = train(cfg)
    state = torch.load(tmp_path / 'within.pth', weights_only=False)['optimizer']
    within = [group['lr'] for group in state['param_groups']]
    assert within == [group['lr'] for group in runner.optim_wrapper.optimizer.param_groups]
    if base:
        assert state['base_param_settings']['lr'] == 1e-6
        lines = [line['base_lr'] for line in logged(tmp_path) if 'base_lr' in line]
        assert lines == [1e-6] * 2 + [0.5e-6] * 15
    assert steps(tmp_path)[4]['lr'][0] == within[0] / 2


def test_updates_of_several_batches(tmp_path: Path) -> None:
    """Iterations are updates then, and so are those that stages begin behind."""
    cfg = progressive(tmp_path, **{'train_cfg.max_iters': 7, 'train_cfg.count': 'updates'})
    cfg.optim_wrapper.update(type='SparseOptimWrapper', accumulative_counts=2)
    runner = train(cfg)
    sizes = [8] * 6 + [4] * 8
    assert [shape[0] for shape in runner.model.shapes] == sizes
    assert [len(one['numbers']) for one in steps(tmp_path)] == sizes[::2]


def test_scale_and_any_other_attribute(tmp_path: Path) -> None:
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
def test_what_is_kept_is_made_anew(workers: int, tmp_path: Path) -> None:
    """`CachedDataset` has resized samples, until the size of that changes."""
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


def test_finds_transforms_wherever_they_are() -> None:
    crop = dict(type='RandomCrop', crop_size=(8, 8))
    resize = dict(type='RandomResize', scale=(32, 24), ratio_range=(1.0, 1.0))
    fused = dict(type='ResizeRandomCrop', resize=resize, crop=dict(crop_size=(8, 8)))
    apart = dict(type='RandomChoice', transforms=[[crop], [dict(type='RandomFlip', prob=0.5)]])
    pictures = [
        dict(type='GrowingPictures', pipeline=[dict(type='DrawPicture'), fused]),
        dict(type='RepeatDataset', times=2, dataset=dict(type='GrowingPictures', pipeline=[apart])),
    ]
    with_scope = dict(type='ConcatDataset', datasets=pictures, _scope_='mmseg')
    dataset = DATASETS.build(with_scope)
    transforms = LiveTransforms(dataset)
    assert len(transforms.find('RandomCrop')) == 2
    assert len(transforms.find('FastRandomCrop')) == 1
    assert transforms.find('Resize') == []  # RandomResize tells it each time
    assert transforms.set('RandomCrop', 'crop_size', [4, 6]) == [
        'FastRandomCrop.crop_size (8, 8) -> (4, 6)',
        'RandomCrop.crop_size (8, 8) -> (4, 6)',
    ]
    assert transforms.set('RandomCrop', 'crop_size', (4, 6)) == []
    assert transforms.set('RandomResize', 'scale', (16, 12)) != []
    sample = dataset[0]
    assert sample['img'].shape == (4, 6, 3)
    assert sample['scale'] == (16, 12)


@pytest.mark.parametrize(
    ('stages', 'message'),
    [
        (dict(begin=0), r' must be a list of dicts'),
        ([5], r'\[0\] must be a dict'),
        ([dict(crop_size=4)], r'\[0\].begin must be .* found None'),
        ([dict(begin=-1)], r'\[0\].begin must be .* at least 0, found -1'),
        ([dict(begin=True)], r'\[0\].begin must be'),
        ([dict(begin=4), dict(begin=4)], r'\[1\].begin must be .* before \(4\), found 4'),
        ([dict(begin=0, crop=4)], r'\[0\].crop is unknown; did you mean crop_size\?'),
        ([dict(begin=0, batch_size=0)], r'\[0\].batch_size must be'),
        ([dict(begin=0, batch_size=2.0)], r'\[0\].batch_size must be'),
        ([dict(begin=0, crop_size=(4, 0))], r'\[0\].crop_size must be'),
        ([dict(begin=0, crop_size=(4, 4, 4))], r'\[0\].crop_size must be'),
        ([dict(begin=0, scale='64')], r'\[0\].scale must be'),
        ([dict(begin=0, lr_scale=0)], r'\[0\].lr_scale must be'),
        ([dict(begin=0, lr_scale='cubic')], r'\[0\].lr_scale must be'),
        ([dict(begin=0, pipeline=['RandomCrop'])], r'\[0\].pipeline must be'),
        ([dict(begin=0, pipeline=dict(RandomCrop=4))], r'\[0\].pipeline must be'),
    ],
)
def test_stages_that_cannot_be_meant(stages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=KEY + message):
        ProgressiveTrainingHook(stages)


@pytest.mark.parametrize(
    ('stage', 'message'),
    [
        (dict(scale=(8, 8)), 'scale is for Resize, RandomResize, RandomChoiceResize, found Draw'),
        (dict(pipeline=dict(RandomFlip=dict(prob=1.0))), 'RandomFlip.prob is for RandomFlip'),
        (dict(pipeline=dict(RandomCrop=dict(size=4))), "has no attribute 'size', found"),
        (dict(batch_size=41), 'batch_size=41 with drop_last leaves no batch of the 40 samples'),
    ],
)
def test_stages_that_cannot_begin(stage: dict, message: str, tmp_path: Path) -> None:
    """Are told before the training, though they come later."""
    stages = [dict(begin=0, batch_size=2), dict(begin=10, **stage)]
    cfg = progressive(tmp_path, stages, **{'train_dataloader.drop_last': True})
    with pytest.raises(ValueError, match=KEY + r'\[1\].*' + message):
        train(cfg)
    assert not (tmp_path / 'steps').exists()


def test_batches_of_ones_own(tmp_path: Path) -> None:
    class OwnBatches(BatchSampler):
        pass

    cfg = progressive(tmp_path)
    runner = Runner.from_cfg(cfg)
    runner._train_dataloader.batch_sampler = dict(type=OwnBatches, drop_last=False)
    with pytest.raises(ValueError, match=KEY + r'\[0\].batch_size=8 needs .* found OwnBatches'):
        runner.train()


@pytest.mark.parametrize('kind', ['IterBasedTrainLoop', 'EpochBasedTrainLoop'])
def test_stock_loops_cannot_go_on_where_they_were(kind: str, tmp_path: Path) -> None:
    cfg = progressive(tmp_path)
    cfg.train_cfg = dict(type=kind, max_iters=9)
    if kind == 'EpochBasedTrainLoop':
        cfg.train_cfg = dict(type=kind, max_epochs=2)
    with pytest.raises(ValueError, match=f'train_cfg.type=.* found {kind} with a DataLoader'):
        train(cfg)


def test_without_stages_nothing_changes(tmp_path: Path) -> None:
    """Also under stock's loops."""
    train(progressive(tmp_path / 'none', [], **{'train_cfg.type': 'IterBasedTrainLoop'}))
    assert 'Stage ' not in log_text(tmp_path / 'none')
    assert len(steps(tmp_path / 'none')) == 17
