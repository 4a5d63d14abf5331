"""Small images, and small pipelines of the loader benchmark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmtempo.benchmarks.loader import arms
from mmtempo.benchmarks.loader.arms import PIPELINES
from mmtempo.benchmarks.loader.pictures import write_pictures
from mmtempo.benchmarks.loader.rounds import as_in_training


@pytest.fixture(scope='session')
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write 12 images of 160 x 90; the folder is read only."""
    folder = str(tmp_path_factory.mktemp('pictures'))
    write_pictures(folder, 12, (160, 90))
    return folder


@pytest.fixture(scope='module')
def small_pipelines() -> Iterator[None]:
    """Resize to 200 x 120, crop to 64 x 64; skip the collections of mmengine's data sets."""
    with pytest.MonkeyPatch.context() as patch, as_in_training():
        patch.setattr('gc.collect', lambda: 0)
        patch.setitem(arms.RESIZE, 'scale', (200, 120))
        patch.setitem(arms.CROP, 'crop_size', (64, 64))
        for pipeline in PIPELINES.values():
            for transform in pipeline:
                if 'crop_size' in transform:
                    patch.setitem(transform, 'crop_size', (64, 64))
        yield
