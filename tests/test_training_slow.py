"""The mini config learns, and its score depends on the calibration."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from mmtempo.workloads.bev.synthetic import write_dataset
from tests.testing.common import MINI
from tests.testing.tool_commands import run, scores


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_learns_and_needs_its_calibration(tmp_path: Path) -> None:
    root = tmp_path / 'bev'
    for _ in write_dataset(str(root), dict(train=400, val=60), (800, 450), workers=2):
        pass
    calibrations = json.loads((root / 'calib.json').read_text())
    tokens, matrices = list(calibrations), list(calibrations.values())
    random.Random(0).shuffle(matrices)
    (root / 'shuffled.json').write_text(json.dumps(dict(zip(tokens, matrices))))

    found = {}
    for name, calib_file, splat in (
        ('right', 'calib.json', 'auto'),
        ('bag', 'calib.json', 'bag'),
        ('shuffled', 'shuffled.json', 'auto'),
    ):
        options = {'model.view_transform.splat': splat}
        for split in ('train', 'val'):
            options[f'{split}_dataloader.dataset.data_root'] = root
            options[f'{split}_dataloader.dataset.calib_file'] = calib_file
        text = run('train.py', MINI, '--work-dir', tmp_path / name, options=options)
        found[name] = scores(text)
    print(found)
    right, shuffled = found['right'], found['shuffled']
    # No constant prediction scores more than positive everywhere.
    assert right['mIoU'] >= 2 * right['mIoU_always']
    assert shuffled['mIoU'] <= 0.8 * right['mIoU']
    # Sums are in another order; over three seeds the difference was at most 0.2 points.
    assert abs(found['bag']['mIoU'] - right['mIoU']) < 0.006
