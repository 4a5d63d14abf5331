"""Stock parts are replaced and restored; with those of mmtempo no iteration synchronizes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config
from mmengine.hooks import Hook, LoggerHook, RuntimeInfoHook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, OPTIM_WRAPPERS
from mmseg.models.data_preprocessor import SegDataPreProcessor
from mmseg.models.decode_heads import FCNHead

from mmtempo.doctor.sync_report import compare_host_syncs
from mmtempo.policies.drop_in import ConfigChange, describe, stock, zero_wait
from tests.testing.common import MINI
from tests.testing.mmseg_configs import PSPNET, SWIN, load, pspnet, with_bn

MODELS = {
    f'mmseg::swin/{SWIN}': {
        'backbone.embed_dims': 24,
        'backbone.num_heads': [1, 2, 4, 8],
        'backbone.depths': [2, 2, 2, 2],
        'decode_head.in_channels': [24, 48, 96, 192],
        'decode_head.channels': 16,
        'auxiliary_head.in_channels': 96,
        'auxiliary_head.channels': 16,
    },
    'mmseg::segformer/segformer_mit-b0_8xb1-160k_cityscapes-1024x1024': {
        'decode_head.channels': 16,
    },
    'mmseg::bisenetv2/bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024': {
        'decode_head.channels': 16,
    },
}


def small(tmp_path: Path, name: str | None) -> Config:
    """Return a config with a narrow model of mmseg and its optimizer, on a small data set."""
    cfg = pspnet(tmp_path)
    if name is None:
        return cfg
    other = load(name)
    cfg.model, cfg.optim_wrapper = other.model, other.optim_wrapper
    cfg.merge_from_dict({f'model.{key}': value for key, value in MODELS[name].items()})
    cfg.model.data_preprocessor.size = (64, 64)
    cfg.model.pretrained = cfg.model.backbone.init_cfg = None
    cfg.model = with_bn(cfg.model.to_dict())
    return cfg


@pytest.mark.parametrize(
    ('name', 'per_iteration'),
    [
        (None, 15),
        *(
            pytest.param(name, per_iteration, marks=pytest.mark.slow)
            for name, per_iteration in zip(MODELS, (15, 11, 27))
        ),
    ],
    ids=['pspnet', 'upernet-swin', 'segformer', 'bisenetv2'],
)
def test_stock_models_do_not_synchronize(
    tmp_path: Path, name: str | None, per_iteration: int
) -> None:
    cfg = small(tmp_path, name)
    before = copy.deepcopy(cfg)
    found = compare_host_syncs(cfg, iterations=2)
    assert found.mmtempo.host_syncs == []
    assert found.stock.per_iteration == per_iteration
    assert cfg.to_dict() == before.to_dict()


def test_clipping_does_not_synchronize(tmp_path: Path) -> None:
    cfg = small(tmp_path, None)
    cfg.optim_wrapper.clip_grad = dict(max_norm=1.0)
    found = compare_host_syncs(cfg, iterations=1)
    assert found.mmtempo.host_syncs == []
    assert found.stock.per_iteration > 15


def types(cfg: Config) -> dict[str, Any]:
    """Return the types of the parts that are replaced."""
    model = cfg.model
    return dict(
        runtime_info=cfg.default_hooks.get('runtime_info', {}).get('type'),
        logger=cfg.default_hooks.logger.type,
        checkpoint=cfg.default_hooks.checkpoint.type,
        wrapper=cfg.optim_wrapper.type,
        preprocessor=(model.data_preprocessor.type, cfg.data_preprocessor.type),
        decode_head=(model.decode_head.type, model.decode_head.get('head')),
        auxiliary_head=(model.auxiliary_head.type, model.auxiliary_head.get('head')),
    )


def test_stock_undoes_zero_wait() -> None:
    cfg, untouched = load(PSPNET), load(PSPNET)
    changes = zero_wait(cfg)
    assert types(cfg) == dict(
        runtime_info='SparseRuntimeInfoHook',
        logger='SparseLoggerHook',
        checkpoint='AsyncCheckpointHook',
        wrapper='SparseOptimWrapper',
        preprocessor=('SparseSegDataPreProcessor',) * 2,
        decode_head=('SparseAccuracyHead', 'PSPHead'),
        auxiliary_head=('SparseAccuracyHead', 'FCNHead'),
    )
    assert cfg.custom_imports == dict(imports=['mmtempo'], allow_failed_imports=False)
    assert cfg.default_hooks.logger.interval == untouched.default_hooks.logger.interval
    assert all(change.changed for change in changes)
    assert [(c.key, c.before, c.after) for c in changes[:5]] == [
        ('default_hooks.runtime_info', 'RuntimeInfoHook', 'SparseRuntimeInfoHook'),
        ('default_hooks.timer', 'IterTimerHook', 'ThroughputMonitorHook'),
        ('default_hooks.logger', 'LoggerHook', 'SparseLoggerHook'),
        ('default_hooks.checkpoint', 'CheckpointHook', 'AsyncCheckpointHook'),
        ('optim_wrapper', 'OptimWrapper', 'SparseOptimWrapper'),
    ]
    # Arguments that stock types do not take are dropped.
    cfg.default_hooks.runtime_info.history_length = 7
    cfg.default_hooks.logger.progress = 'off'
    cfg.default_hooks.checkpoint.on_busy = 'skip'
    cfg.model.data_preprocessor.non_blocking = False
    back = stock(cfg)
    assert len(back) == len(changes) - 1
    assert next(c for c in back if c.key == 'default_hooks.logger').reason == (
        'it takes no progress'
    )
    expected = untouched.to_dict()
    expected['default_hooks']['runtime_info'] = dict(type='RuntimeInfoHook')
    expected['custom_imports'] = dict(imports=['mmtempo'], allow_failed_imports=False)
    assert cfg.to_dict() == expected
    assert stock(cfg) == []


def test_second_zero_wait_changes_nothing() -> None:
    cfg = load(PSPNET)
    zero_wait(cfg)
    once = copy.deepcopy(cfg)
    changes = zero_wait(cfg)
    assert cfg.to_dict() == once.to_dict()
    assert not any(change.changed for change in changes)
    assert {change.reason for change in changes} == {
        'is already a type of mmtempo',
        'contains mmtempo already',
    }


@HOOKS.register_module()
class TheirLoggerHook(LoggerHook):
    """Logger hook of another package."""


@OPTIM_WRAPPERS.register_module()
class TheirOptimWrapper(OptimWrapper):
    """Optimizer wrapper of another package."""


def reasons(changes: list[ConfigChange]) -> dict[str, str]:
    """Return the reasons of the keys that were left alone."""
    return {change.key: change.reason for change in changes if not change.changed}


def test_parts_that_are_not_stock_are_left_alone() -> None:
    cfg = load(PSPNET)
    cfg.default_hooks.logger.type = 'TheirLoggerHook'
    cfg.default_hooks.runtime_info = None
    cfg.optim_wrapper.type = 'TheirOptimWrapper'
    cfg.model.data_preprocessor.type = 'NowhereToBeFound'
    cfg.model.decode_head.type = 'DDRHead'
    cfg.model.auxiliary_head = [dict(type='PointHead'), dict(type='FCNHead', num_classes=3), None]
    before = copy.deepcopy(cfg)
    assert reasons(zero_wait(cfg)) == {
        'default_hooks.runtime_info': 'is disabled',
        'default_hooks.logger': 'is not a stock type',
        'optim_wrapper': 'is not a stock type',
        'model.data_preprocessor': 'is not registered',
        'model.decode_head': 'overrides loss_by_feat (in DDRHead)',
        'model.auxiliary_head.0': 'overrides loss_by_feat (in PointHead)',
    }
    heads = cfg.model.auxiliary_head
    assert heads[1] == dict(type='SparseAccuracyHead', head='FCNHead', num_classes=3)
    assert heads[0] == before.model.auxiliary_head[0]
    before.default_hooks.checkpoint.type = 'AsyncCheckpointHook'
    before.default_hooks.timer.type = 'ThroughputMonitorHook'
    assert cfg.default_hooks == before.default_hooks
    assert cfg.optim_wrapper == before.optim_wrapper
    assert cfg.model.decode_head == before.model.decode_head


def test_objects_and_parts_without_type_are_left_alone() -> None:
    cfg = load(PSPNET)
    hook = RuntimeInfoHook()
    cfg.default_hooks.runtime_info = hook
    cfg.default_hooks.logger = dict(interval=3)
    cfg.optim_wrapper = dict(constructor='Several', generator=dict(type='OptimWrapper'))
    assert reasons(zero_wait(cfg)) == {
        'default_hooks.runtime_info': 'is an object instead of a config',
        'default_hooks.logger': 'has no type',
        'optim_wrapper': 'has several optimizers, whose wrappers are left alone',
    }
    assert cfg.default_hooks.runtime_info is hook
    cfg.default_hooks.logger = dict(type=5)
    cfg.optim_wrapper = dict(accumulative_counts=2)
    changes = zero_wait(cfg)
    left = reasons(changes)
    assert left['default_hooks.logger'] == 'has a type that is neither a name nor a class'
    assert left['optim_wrapper'] == 'has no type'
    assert 'optim_wrapper: has no type' in describe(changes)


def test_wrapper_of_a_strategy_is_left_alone() -> None:
    cfg = load(PSPNET)
    del cfg.optim_wrapper['type']
    cfg.strategy = dict(type='DeepSpeedStrategy')
    assert reasons(zero_wait(cfg)) == {'optim_wrapper': 'has no type; the strategy chooses it'}
    assert 'type' not in cfg.optim_wrapper


def test_custom_hooks_that_wait_are_reported() -> None:
    cfg = load(PSPNET)
    cfg.custom_hooks = [
        dict(type='EMAHook'),
        dict(type='TheirLoggerHook'),
        dict(type='mmengine.LoggerHook'),
        dict(type=RuntimeInfoHook),
        dict(type='SparseLoggerHook'),
        dict(type='NumClassCheckHook'),
    ]
    before = copy.deepcopy(cfg.custom_hooks)
    assert reasons(zero_wait(cfg)) == {
        'custom_hooks.0': 'is left alone: stock reads its step count each iteration',
        'custom_hooks.2': 'is left alone: stock reads what it logs at once',
        'custom_hooks.3': 'is left alone: stock reads each loss in each iteration',
    }
    assert cfg.custom_hooks == before


def test_scope_of_a_part_is_followed() -> None:
    cfg = load(PSPNET)
    cfg.default_scope = 'mmengine'
    cfg.model.decode_head._scope_ = 'mmseg'
    cfg.model.auxiliary_head.type = 'mmseg.FCNHead'
    assert cfg.model.decode_head.type == 'PSPHead'
    assert 'model.decode_head' not in reasons(zero_wait(cfg))
    assert cfg.model.decode_head.type == 'SparseAccuracyHead'


def test_wrapper_without_type_is_replaced() -> None:
    cfg = load(PSPNET)
    del cfg.optim_wrapper['type']
    assert ('OptimWrapper', 'SparseOptimWrapper') in [(c.before, c.after) for c in zero_wait(cfg)]
    assert cfg.optim_wrapper.type == 'SparseOptimWrapper'
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    zero_wait(cfg)
    assert cfg.optim_wrapper.type == 'SparseAmpOptimWrapper'
    stock(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper'


@pytest.mark.parametrize('scope', ['mmseg', 'mmengine'])
def test_types_with_scope_or_as_class_are_replaced(scope: str) -> None:
    cfg = load(PSPNET)
    cfg.default_scope = scope
    cfg.default_hooks.logger.type = 'mmengine.LoggerHook'
    cfg.default_hooks.runtime_info = dict(type=RuntimeInfoHook)
    cfg.optim_wrapper.type = 'mmengine.optim.OptimWrapper'
    cfg.model.data_preprocessor.type = 'mmseg.SegDataPreProcessor'
    cfg.data_preprocessor.type = SegDataPreProcessor
    cfg.model.decode_head.type = 'mmseg.PSPHead'
    cfg.model.auxiliary_head.type = FCNHead
    changes = zero_wait(cfg)
    assert all(change.changed for change in changes)
    assert types(cfg)['decode_head'] == ('SparseAccuracyHead', 'mmseg.PSPHead')
    head = cfg.model.auxiliary_head.head
    assert head == 'mmseg.models.decode_heads.fcn_head.FCNHead'
    assert 'PSPHead -> SparseAccuracyHead' in describe(changes)
    stock(cfg)
    assert types(cfg)['decode_head'] == ('mmseg.PSPHead', None)
    assert cfg.model.data_preprocessor.type == (
        'SegDataPreProcessor' if scope == 'mmseg' else 'mmseg.SegDataPreProcessor'
    )


def test_small_configs_get_hooks_and_imports() -> None:
    cfg = Config(dict(model=dict(type='X')))
    assert [change.key for change in zero_wait(cfg)] == [
        'default_hooks.runtime_info',
        'default_hooks.timer',
        'default_hooks.logger',
        'default_hooks.checkpoint',
        'custom_imports',
    ]
    assert cfg.default_hooks.logger == dict(type='SparseLoggerHook')
    assert cfg.default_hooks.checkpoint == dict(type='AsyncCheckpointHook', interval=1)
    assert zero_wait(Config(dict(custom_imports=dict(imports='mmseg'))))[-1].after == (
        'mmseg, mmtempo'
    )
    cfg = Config(dict(custom_imports=dict(imports=['mmseg'], allow_failed_imports=True)))
    zero_wait(cfg)
    assert cfg.custom_imports == dict(imports=['mmseg', 'mmtempo'], allow_failed_imports=True)


@pytest.mark.parametrize(
    ('option', 'key'),
    [
        ('optim_wrapper.type', 'optim_wrapper'),
        ('optim_wrapper', 'optim_wrapper'),
        ('model.decode_head.type', 'model.decode_head'),
        ('default_hooks.logger.type', 'default_hooks.logger'),
        ('default_hooks', 'default_hooks.timer default_hooks.logger default_hooks.checkpoint'),
    ],
)
def test_types_set_by_options_are_kept(option: str, key: str) -> None:
    cfg, before = load(PSPNET), load(PSPNET)
    reason = 'is kept, because --cfg-options sets it'
    assert reasons(zero_wait(cfg, keep=[option])) == dict.fromkeys(key.split(), reason)
    for kept in key.split():
        node, other = cfg, before
        for part in kept.split('.'):
            node, other = node[part], other[part]
        assert node == other
    assert cfg.model.auxiliary_head.type == 'SparseAccuracyHead'


def test_hook_set_by_options_is_not_added() -> None:
    cfg = load(PSPNET)
    zero_wait(cfg, keep=['default_hooks.runtime_info.type'])
    assert 'runtime_info' not in cfg.default_hooks
    zero_wait(cfg, keep=['default_hooks'])
    assert 'runtime_info' not in cfg.default_hooks
    zero_wait(cfg, keep=['default_hooks.runtime_info.history_length', 'model.decode_head.channels'])
    assert cfg.default_hooks.runtime_info.type == 'SparseRuntimeInfoHook'


def test_all_default_hooks_are_kept() -> None:
    cfg = load(PSPNET)
    zero_wait(cfg, keep=['default_hooks'])
    assert 'runtime_info' not in cfg.default_hooks
    assert cfg.default_hooks.logger.type == 'LoggerHook'


def test_model_of_mmtempo_is_left_alone() -> None:
    cfg = Config.fromfile(str(MINI))
    before = copy.deepcopy(cfg)
    left = reasons(zero_wait(cfg))
    assert left['model.data_preprocessor'] == 'is already a type of mmtempo'
    assert left['model.decode_head'] == 'is already a type of mmtempo'
    assert cfg.model == before.model
    stock(cfg)
    assert cfg.model == before.model
    assert cfg.default_hooks.logger.type == 'LoggerHook'


def test_description_lists_changes_and_reasons() -> None:
    text = describe(
        [
            ConfigChange('a', 'A', 'B', 'stock waits'),
            ConfigChange('c', 'C', 'C', 'is not a stock type'),
            ConfigChange('d', None, 'D', 'it was missing'),
        ]
    )
    assert text.splitlines() == [
        'changed:',
        '  a: A -> B; stock waits',
        '  d: None -> D; it was missing',
        'left alone:',
        '  c: C is not a stock type',
    ]
    assert describe([]) == ''


def test_replacements_derive_from_stock_hooks() -> None:
    """So they take each argument of the hooks that they replace."""
    for cls in (LoggerHook, RuntimeInfoHook):
        ours = HOOKS.get(f'Sparse{cls.__name__}')
        assert issubclass(ours, cls)
        assert issubclass(ours, Hook)
