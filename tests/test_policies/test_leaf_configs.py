"""Leaf configs and --tempo result in the same training."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from mmengine.config import Config

import mmtempo  # noqa: F401
from mmtempo.cli.config import resolve_config_path
from mmtempo.policies import POLICIES, apply_policy, load_policy
from mmtempo.policies.drop_in import zero_wait
from mmtempo.policies.policy import KEY
from tests.testing.common import ROOT
from tests.testing.leaf_configs import LEAVES, load_leaf
from tests.testing.mmseg_configs import SWIN

BY_POLICY = [path for path in LEAVES if f'_base_/{KEY}/' in path.read_text()]
FOLDER = ROOT / 'configs/_base_/mmseg'
# Baselines with models of mmseg -> the config of mmseg that they derive from.
RECIPES = {
    'pspnet_r50-d8_4xb2-80k_cityscapes-512x1024': 'pspnet/{}',
    'pspnet_r50-d8_4xb4-160k_ade20k-512x512': 'pspnet/{}',
    'upernet_swin-t_8xb2-80k_cityscapes-512x1024': None,  # mmseg has no such config
    'upernet_swin-t_8xb2-160k_ade20k-512x512': f'swin/{SWIN}',
    'segformer_mit-b0_8xb1-160k_cityscapes-1024x1024': 'segformer/{}',
    'segformer_mit-b0_8xb2-160k_ade20k-512x512': 'segformer/{}',
    'bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024': 'bisenetv2/{}',
    'bisenetv2_fcn_4xb4-160k_ade20k-512x512': None,  # mmseg has no such config
}
# Keys that a baseline leaf sets beyond those of --zero-wait.
MORE: dict[str, Any] = {
    'default_hooks.checkpoint.max_keep_ckpts': 3,  # stock keeps all files
    'val_evaluator.type': 'StreamingIoUMetric',  # as for all policies
    'test_evaluator.type': 'StreamingIoUMetric',
    'auto_scale_lr': None,  # stock does not set the samples that its rate is for
    'parts': None,  # which the leaf assigns, and which no code reads
}


def baseline_of(leaf: Path) -> Path:
    """Return the leaf that another inherits from, which follows no policy."""
    found = re.search(r"^_base_ = \['\./([^']+)'", leaf.read_text(), re.MULTILINE)
    assert found is not None, f'{leaf.name} does not begin with another leaf'
    return leaf.parent / found[1]


@pytest.mark.parametrize('leaf', BY_POLICY, ids=lambda path: path.stem)
def test_leaf_equals_its_baseline_with_tempo(leaf: Path) -> None:
    by_inheritance = load_leaf(leaf)
    by_flag = copy.deepcopy(load_leaf(baseline_of(leaf)))
    apply_policy(by_flag, load_policy(by_inheritance[KEY]['policy']))
    assert by_inheritance.to_dict() == by_flag.to_dict()


def test_each_family_has_a_leaf_for_each_policy() -> None:
    found = {(baseline_of(leaf).stem, load_leaf(leaf)[KEY]['policy']) for leaf in BY_POLICY}
    assert len(found) == len(BY_POLICY) > 0
    baselines = {name for name, _ in found}
    assert baselines == {*RECIPES, 'lss_swin-t_1xb4-200k_nuscenes-bev-800x600'}
    others = set(POLICIES) - {'baseline'}
    assert found == {(name, policy) for name in baselines for policy in others}
    for leaf in BY_POLICY:
        assert load_leaf(leaf)[KEY]['policy'].replace('_', '-') in leaf.stem.split('_')


@pytest.mark.parametrize('name', RECIPES)
def test_baseline_equals_the_recipe_with_zero_wait(name: str) -> None:
    (leaf,) = (path for path in LEAVES if path.stem == name)
    baseline = load_leaf(leaf)
    expected = Config.fromfile(FOLDER / f'{name}.py')
    assert 'mmtempo' not in str(expected.to_dict())
    zero_wait(expected)
    more = {key: baseline[key] if value is None else value for key, value in MORE.items()}
    expected.merge_from_dict(copy.deepcopy(more))
    assert baseline.to_dict() == expected.to_dict()


@pytest.mark.parametrize('name', [name for name, path in RECIPES.items() if path])
def test_recipe_equals_the_config_of_mmseg(name: str) -> None:
    assert recipe(name) == stock(str(RECIPES[name]).format(name))


def test_recipes_without_a_config_of_mmseg_derive_from_others() -> None:
    """Data, model, optimizer and length equal those of other configs of mmseg."""
    pspnet = stock('pspnet/pspnet_r50-d8_4xb2-80k_cityscapes-512x1024')
    bisenet = stock('bisenetv2/bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024')
    swin = stock(f'swin/{SWIN}')
    cfg = recipe('upernet_swin-t_8xb2-80k_cityscapes-512x1024')
    for key in ('train_dataloader', 'val_dataloader', 'train_cfg'):
        assert cfg[key] == pspnet[key]
    assert cfg['optim_wrapper'] == swin['optim_wrapper']
    check_classes(cfg, 19)
    cfg = recipe('bisenetv2_fcn_4xb4-160k_ade20k-512x512')
    assert cfg['train_dataloader']['batch_size'] == 4
    for key in ('train_dataloader', 'val_dataloader'):
        assert cfg[key]['dataset'] == swin[key]['dataset']
    for key in ('optim_wrapper', 'param_scheduler', 'train_cfg'):
        assert cfg[key] == bisenet[key]
    check_classes(cfg, 150)


def check_classes(cfg: dict[str, Any], classes: int) -> None:
    """Check that all heads have this number of classes, and that padding equals the crop."""
    assert set(re.findall(r"'num_classes': (\d+)", str(cfg['model']))) == {str(classes)}
    crops = [step.get('crop_size') for step in cfg['train_dataloader']['dataset']['pipeline']]
    assert cfg['model']['data_preprocessor']['size'] in crops


def recipe(name: str) -> dict[str, Any]:
    """Return a config of configs/_base_/mmseg, which has stock parts."""
    return Config.fromfile(FOLDER / f'{name}.py').to_dict()


def stock(name: str) -> dict[str, Any]:
    """Return a config of mmseg."""
    return Config.fromfile(resolve_config_path(f'mmseg::{name}')).to_dict()
