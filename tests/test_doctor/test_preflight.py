"""Mistakes in a config are errors before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import MODELS, OPTIM_WRAPPER_CONSTRUCTORS

from mmtempo.cli.config import resolve_config_path
from mmtempo.doctor.preflight import preflight


def merged(cfg: Config, **options: object) -> Config:
    cfg.merge_from_dict({key.replace('__', '.'): value for key, value in options.items()})
    return cfg


def test_good_config_passes_and_writes_nothing(tiny_cfg: Config) -> None:
    preflight(tiny_cfg)
    preflight(tiny_cfg, test=True)
    assert not Path(tiny_cfg.work_dir).exists()


def test_config_is_not_changed(tiny_cfg: Config) -> None:
    """Stock classes change the key `pretrained` in the dictionaries that they are built from."""
    stock = resolve_config_path('mmseg::fcn/fcn_r18-d8_4xb2-80k_cityscapes-512x1024')
    tiny_cfg.model = Config.fromfile(stock).model
    before = tiny_cfg.pretty_text
    preflight(tiny_cfg)
    assert tiny_cfg.pretty_text == before


@pytest.mark.parametrize(
    ('options', 'error', 'message'),
    [
        # errors of mmengine are not changed
        (dict(model__backbone__type='SwinTransformr'), KeyError, 'SwinTransformr is not in the'),
        (dict(model__backbone__embed_dim=3), TypeError, 'embed_dim'),
        (dict(train_dataloader__dataset__type='Nope'), KeyError, 'Nope is not in the'),
        (dict(train_cfg__type='NoLoop'), KeyError, 'NoLoop is not in the'),
        (dict(val_evaluator__type='NoMetric'), KeyError, 'NoMetric is not in the'),
        (dict(default_hooks__timer__type='NoHook'), KeyError, 'NoHook is not in the'),
        # errors of mmtempo, where mmengine has none
        (dict(model__view_transform__stride=32), ValueError, 'view_transform.stride = 32 must be'),
        (
            dict(model__view_transform__in_channels=64),
            ValueError,
            'the model fails on a sample of train_dataloader.dataset: .*channels',
        ),
        (
            dict(model__decode_head__num_blocks=(1,)),
            ValueError,
            r'Target size(.|\n)*label_size of the data',
        ),
        (dict(train_cfg__val_intervall=3), TypeError, r"train_cfg: .* takes no 'val_intervall'"),
        (
            dict(train_dataloader__batchsize=3),
            TypeError,
            "train_dataloader: unexpected key 'batchs",
        ),
        (dict(default_hooks__logger__intervall=3), TypeError, r'default_hooks.logger: .*intervall'),
        (
            dict(default_hooks__runtime_info__on_nonfinit='warn'),
            TypeError,
            'default_hooks.runtime_info: SparseRuntimeInfoHook takes no .*on_nonfinite',
        ),
        (
            dict(default_hooks__timer__stage_profile=dict(modules=['backbonne'])),
            ValueError,
            r"timer.stage_profile.modules: .* no module 'backbonne'; did you mean backbone ",
        ),
        (dict(default_hooks__timer__stall_factor=0), ValueError, 'timer.stall_factor must be'),
        (
            dict(custom_hooks=[dict(type='ModelTuningHook', compile=dict(modules=['nek']))]),
            ValueError,
            "ModelTuningHook.compile.modules: .* no module 'nek'",
        ),
        (
            dict(optim_wrapper__accumulative_count=2),
            TypeError,
            'optim_wrapper: SparseOptimWrapper takes no .*accumulative_counts',
        ),
        (
            dict(train_dataloader__dataset__data_root='nowhere'),
            FileNotFoundError,
            r'nowhere does not exist(.|\n)*--cfg-options train_dataloader.dataset.data_root',
        ),
        (dict(val_dataloader__dataset__data_root='nowhere'), FileNotFoundError, 'val_dataloader'),
        (dict(optim_wrapper__optimizer__lrr=1), TypeError, 'lrr'),
        (dict(optim_wrapper__optimizer__type='AdamWW'), KeyError, 'AdamWW is not in the'),
        (dict(param_scheduler=[dict(type='PolyLRR')]), KeyError, 'PolyLRR is not in the'),
        (dict(train_dataloader__sampler__type='Sampl'), KeyError, 'Sampl is not in the'),
        (dict(train_dataloader__collate_fn=dict(type='coll')), KeyError, 'coll is not in the'),
        (dict(visualizer__type='Vis'), KeyError, 'Vis is not in the'),
        (dict(default_hooks__checkpoint__max_keep_ckpt=3), TypeError, r'max_keep_ckpt(.|\n)*ckpts'),
        (dict(train_dataloader__persistent_workers=True), ValueError, 'num_workers of at least 1'),
        (dict(train_dataloader__dataset=None), ValueError, 'train_dataloader.dataset is missing'),
        (dict(val_cfg=None), ValueError, 'val_cfg is missing'),
        (
            dict(train_dataloader__dataset__pipeline=[dict(type='BEVRandomCrop', size=(9999, 9))]),
            KeyError,
            'img',
        ),
        (dict(val_evaluator=[dict(metrics=[dict(type='NoM')])]), KeyError, 'NoM is not in the'),
        (dict(load_from='gone.pth'), FileNotFoundError, 'checkpoint gone.pth does not exist'),
    ],
)
def test_mistake_is_an_error(tiny_cfg: Config, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        preflight(merged(tiny_cfg, **options))
    assert not Path(tiny_cfg.work_dir).exists()


@pytest.mark.parametrize(
    'options',
    [
        dict(val_evaluator=dict(_delete_=True, metrics=[dict(type='BEVIoUMetric')])),
        dict(val_evaluator=[dict(type='BEVIoUMetric')]),
        dict(val_dataloader=None, val_cfg=None, val_evaluator=None),
        dict(load_from='open-mmlab://resnet50_v1c'),
        dict(default_hooks__logger=None),
    ],
)
def test_other_forms_of_a_config_pass(tiny_cfg: Config, options: dict) -> None:
    preflight(merged(tiny_cfg, **options))


def test_empty_stock_data_set_is_an_error(tiny_cfg: Config, tmp_path: Path) -> None:
    for folder in ('img', 'ann'):
        (tmp_path / folder).mkdir()
    tiny_cfg.train_dataloader.dataset = dict(
        type='CityscapesDataset',
        data_root=str(tmp_path),
        data_prefix=dict(img_path='img', seg_map_path='ann'),
        pipeline=[],
    )
    with pytest.raises(
        ValueError,
        match=r'train_dataloader.dataset \(CityscapesDataset\) is empty; check its data_root',
    ):
        preflight(tiny_cfg)


def save(path: Path, state: dict) -> str:
    torch.save(dict(state_dict=state, meta=dict(iter=1), message_hub={}), path)
    return str(path)


def model_state(cfg: Config) -> dict:
    from mmengine.registry import DefaultScope

    with DefaultScope.overwrite_default_scope('mmseg'):
        return MODELS.build(cfg.model).state_dict()


def test_checkpoint_of_another_model_is_an_error(tiny_cfg: Config, tmp_path: Path) -> None:
    path = save(tmp_path / 'other.pth', {'backbone.conv1.weight': torch.zeros(3)})
    tiny_cfg.load_from = path
    with pytest.raises(
        ValueError, match=r'other.pth is of another model: it contains 0 of the \d+ ten'
    ):
        preflight(tiny_cfg)


def test_part_of_a_model_fits_for_finetuning_only(tiny_cfg: Config, tmp_path: Path) -> None:
    state = model_state(tiny_cfg)
    state.pop('decode_head.classify.bias')
    tiny_cfg.load_from = save(tmp_path / 'part.pth', state)
    preflight(tiny_cfg)
    for changes in (dict(test=True), dict()):
        tiny_cfg.resume = not changes
        with pytest.raises(ValueError, match='the first missing: decode_head.classify.bias'):
            preflight(tiny_cfg, **changes)


def test_resume_auto_checks_the_newest_checkpoint(tiny_cfg: Config, tmp_path: Path) -> None:
    tiny_cfg.resume = True
    preflight(tiny_cfg)  # without a checkpoint the training starts anew, as in stock
    work = Path(tiny_cfg.work_dir)
    work.mkdir()
    (work / 'last_checkpoint').write_text(save(work / 'iter_1.pth', {'a': torch.zeros(1)}))
    with pytest.raises(ValueError, match=r'iter_1.pth is of another model(.|\n)*without --resume'):
        preflight(tiny_cfg)


def test_checkpoint_is_compared_with_the_model_inside_tta(tiny_cfg: Config, tmp_path: Path) -> None:
    tiny_cfg.load_from = save(tmp_path / 'good.pth', model_state(tiny_cfg))
    tiny_cfg.model = dict(type='SegTTAModel', module=tiny_cfg.model)
    preflight(tiny_cfg, test=True)


def test_broken_checkpoint_is_named(tiny_cfg: Config, tmp_path: Path) -> None:
    (tmp_path / 'broken.pth').write_bytes(b'PK not really')
    tiny_cfg.load_from = str(tmp_path / 'broken.pth')
    with pytest.raises(ValueError, match='broken.pth cannot be read safely'):
        preflight(tiny_cfg)


def test_checkpoint_of_torch_before_1_6_passes(tiny_cfg: Config, tmp_path: Path) -> None:
    path = tmp_path / 'old.pth'
    state = model_state(tiny_cfg)
    torch.save(dict(state_dict=state), path, _use_new_zipfile_serialization=False)
    tiny_cfg.load_from = str(path)
    preflight(tiny_cfg, test=True)


def test_missing_operators_name_versions_and_command(
    tiny_cfg: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mmseg's error 'Please install ... ops' names neither versions nor a command."""

    @MODELS.register_module(name='NeedsOps', force=True)
    class NeedsOps(torch.nn.Module):
        def __init__(self) -> None:
            raise ImportError('Please install onedl-mmcv for CrissCrossAttention ops.')

    monkeypatch.setattr('mmtempo.doctor.preflight.has_compiled_ops', lambda: False)
    tiny_cfg.model.decode_head = dict(type='NeedsOps')
    with pytest.raises(ImportError, match="needs mmcv's compiled operators") as info:
        preflight(tiny_cfg)
    assert 'found:   torch' in str(info.value)
    assert 'MMCV_WITH_OPS=1 pip install' in str(info.value)
    monkeypatch.setattr('mmtempo.doctor.preflight.has_compiled_ops', lambda: True)
    with pytest.raises(ImportError, match='Please install onedl-mmcv'):
        preflight(tiny_cfg)


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class TakesTheirs(DefaultOptimWrapperConstructor):
    """Constructor of another package."""

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        optim_wrapper_cfg.pop('theirs')
        super().__init__(optim_wrapper_cfg, paramwise_cfg)


def test_constructor_may_take_more_keys(tiny_cfg: Config) -> None:
    tiny_cfg.optim_wrapper.constructor = 'TakesTheirs'
    tiny_cfg.optim_wrapper.theirs = 3
    preflight(tiny_cfg)
    del tiny_cfg.optim_wrapper['constructor']
    with pytest.raises(TypeError, match='theirs'):
        preflight(tiny_cfg)
