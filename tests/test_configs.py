"""Every leaf config loads, builds its model, and reads well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmtempo.bev.calibration import pixel_to_bev

from .conftest import ROOT

LEAVES = sorted(path for path in (ROOT / 'configs').rglob('*.py') if '_base_' not in path.parts)


def test_there_are_configs() -> None:
    assert len(LEAVES) >= 3


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.stem)
def test_builds_its_model(path: Path) -> None:
    cfg = Config.fromfile(str(path))
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = MODELS.build(cfg.model)
    assert sum(p.numel() for p in model.parameters()) > 1e5


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.stem)
def test_is_short_and_opens_with_its_command(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith('# ')
    assert f'python tools/train.py {path.relative_to(ROOT).as_posix()}' in lines[0]


def test_default_hooks_are_defined_once() -> None:
    owners = [
        path.name
        for path in (ROOT / 'configs/_base_').rglob('*.py')
        if 'default_hooks' in path.read_text()
    ]
    assert owners == ['default_runtime.py']


def test_baseline_is_that_of_the_field_notes() -> None:
    cfg = Config.fromfile(
        str(ROOT / 'configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py')
    )
    assert cfg.train_dataloader.batch_size == 4
    assert cfg.train_dataloader.num_workers == 8
    assert cfg.train_cfg.max_iters == 200_000
    assert cfg.optim_wrapper.type == 'SparseOptimWrapper'  # fp32
    assert cfg.optim_wrapper.optimizer.lr == 2e-4
    assert cfg.default_hooks.checkpoint.interval == 5_000
    assert cfg.default_hooks.checkpoint.max_keep_ckpts == 3
    assert cfg.default_hooks.logger.interval == 50
    assert cfg.param_scheduler[0].end == cfg.param_scheduler[1].begin == 1500


def test_full_model_has_the_reference_shapes() -> None:
    cfg = Config.fromfile(
        str(ROOT / 'configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py')
    )
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(cfg.model).eval()
    images = torch.zeros(1, 3, 600, 800)
    intrinsics = np.array([[633.0, 0, 408], [0, 844, 327], [0, 0, 1]])
    pix2bev = pixel_to_bev(intrinsics[None, None], np.eye(4))
    with torch.no_grad():
        (features,) = model.backbone(images)
        bev = model.view_transform(features, model.view_transform.prepare(pix2bev, (600, 800)))
        logits = model.decode_head(bev)
    assert features.shape == (1, 768, 19, 25)
    assert bev.shape == (1, 64, 98, 100)
    assert logits.shape == (1, 14, 196, 200)


def test_every_model_family_has_readme_and_metafile() -> None:
    for folder in {path.parent for path in LEAVES}:
        assert (folder / 'README.md').is_file()
        text = (folder / 'metafile.yml').read_text()
        for path in folder.glob('*.py'):
            assert f'configs/{folder.name}/{path.name}' in text
