"""Each leaf config loads, builds its model, and follows the conventions of names and length."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from mmengine.registry import MODELS, DefaultScope

from mmtempo.workloads.bev.structures.calibration import pixel_to_bev
from tests.testing.common import ROOT
from tests.testing.leaf_configs import LEAVES, load_leaf

BASELINE = ROOT / 'configs/lss_swin/lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py'
# Processes, samples of a batch, batches of an update, iterations.
SCHEDULE = re.compile(r'_(\d+)xb(\d+)(?:x(\d+))?-(\d+k?)_')


def test_leaf_configs_are_found() -> None:
    assert len(LEAVES) >= 40


def test_each_model_is_built() -> None:
    """Leaves of one model by different policies are built once, since the model is the same."""
    models = {}
    for path in LEAVES:
        cfg = load_leaf(path)
        key = json.dumps(cfg.model.to_dict(), sort_keys=True, default=str)
        models.setdefault((cfg.default_scope, key), cfg.model)
    assert len(models) >= 13
    for (scope, _), model in models.items():
        with DefaultScope.overwrite_default_scope(scope):
            built = MODELS.build(copy.deepcopy(model))  # building changes the dictionary
        assert sum(p.numel() for p in built.parameters()) > 1e5


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.stem)
def test_leaf_is_short_and_begins_with_its_command(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 15
    assert lines[0].startswith('# ')
    assert f'python tools/train.py {path.relative_to(ROOT).as_posix()}' in lines[0]


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.stem)
def test_name_contains_batch_and_length(path: Path) -> None:
    cfg = load_leaf(path)
    found = SCHEDULE.search(path.stem)
    assert found is not None
    processes, batch, count = (int(number or 1) for number in found.groups()[:3])
    assert cfg.train_dataloader.batch_size == batch
    assert cfg.optim_wrapper.get('accumulative_counts', 1) == count
    # With this number of processes --auto-scale-lr does not change the learning rate.
    assert cfg.auto_scale_lr == dict(enable=False, base_batch_size=processes * batch * count)
    iterations = cfg.train_cfg.max_iters
    assert found[4] in (str(iterations), f'{iterations / 1000:.0f}k')


@pytest.mark.parametrize('path', LEAVES, ids=lambda path: path.stem)
def test_leaf_is_at_most_three_levels_deep(path: Path) -> None:
    assert _levels(path) <= 3


def _levels(path: Path) -> int:
    """Return the files from this one to the deepest of its bases, without those of mmseg."""
    code = path.read_text().partition('_base_ = ')[2].partition(']')[0]
    bases = [path.parent / name for name in re.findall(r"'([^']+\.py)'", code)]
    return 1 + max(map(_levels, bases), default=0)


def test_default_hooks_are_defined_once() -> None:
    owners = [
        path.name
        for path in (ROOT / 'configs/_base_').rglob('*.py')
        if 'default_hooks' in path.read_text()
    ]
    assert owners == ['default_runtime.py']


def test_baseline_equals_the_field_notes() -> None:
    cfg = load_leaf(BASELINE)
    assert cfg.train_dataloader.batch_size == 4
    assert cfg.train_dataloader.num_workers == 8
    assert cfg.train_cfg.max_iters == 200_000
    assert cfg.optim_wrapper.type == 'SparseOptimWrapper'  # fp32
    assert cfg.optim_wrapper.optimizer.lr == 2e-4
    assert cfg.default_hooks.checkpoint.interval == 5_000
    assert cfg.default_hooks.checkpoint.max_keep_ckpts == 3
    assert cfg.default_hooks.logger.interval == 50
    assert cfg.param_scheduler[0].end == cfg.param_scheduler[1].begin == 1500


def test_full_model_has_the_shapes_of_the_reference() -> None:
    cfg = load_leaf(BASELINE)
    with DefaultScope.overwrite_default_scope('mmseg'):
        model = MODELS.build(copy.deepcopy(cfg.model)).eval()
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
    """mim reads the index, which names the metafiles, which name all configs."""
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    families = {path.parent for path in LEAVES}
    assert sorted(index) == sorted(f'configs/{family.name}/metafile.yml' for family in families)
    for family in families:
        readme = (family / 'README.md').read_text()
        found = yaml.safe_load((family / 'metafile.yml').read_text())
        (collection,) = found['Collections']
        assert (ROOT / collection['README']) == family / 'README.md'
        assert {model['In Collection'] for model in found['Models']} == {collection['Name']}
        names = {model['Name']: model['Config'] for model in found['Models']}
        assert names == {
            path.stem: path.relative_to(ROOT).as_posix() for path in family.glob('*.py')
        }
        for name in names:
            assert f'`{name}.py`' in readme
