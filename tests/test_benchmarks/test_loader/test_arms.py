"""All loaders of the benchmark make batches of the same form."""

from __future__ import annotations

import pytest
from mmseg.registry import TRANSFORMS

from mmtempo.benchmarks.loader.arms import ARMS, BATCH, LOADERS, PIPELINES, STOCK, Source

pytestmark = pytest.mark.usefixtures('small_pipelines')


@pytest.mark.parametrize('name', ARMS)
def test_every_arm_makes_batches_of_the_same_form(pictures: str, name: str) -> None:
    source = Source(ARMS[name], pictures, 'png')
    stream = LOADERS[source.arm.loader](source.dataset(), 0)
    first, second = stream.take(), stream.take()
    stream.close()
    assert len(first['inputs']) == len(first['data_samples']) == BATCH
    assert {image.shape for image in first['inputs']} == {(3, 64, 64)}
    paths = [sample.img_path for batch in (first, second) for sample in batch['data_samples']]
    assert len(set(paths)) == 2 * BATCH  # no sample twice
    assert paths != sorted(paths)


def test_stock_arm_uses_stock_parts_only() -> None:
    assert (ARMS[STOCK].loader, ARMS[STOCK].cache) == ('mmengine', None)
    kinds = [TRANSFORMS.get(cfg['type']) for cfg in PIPELINES[ARMS[STOCK].pipeline]]
    assert len(kinds) == 7
    assert {kind.__module__.partition('.')[0] for kind in kinds} == {'mmcv', 'mmseg'}
