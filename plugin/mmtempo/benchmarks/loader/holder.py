"""Hold a full cache and a loader with workers, whose memory `loader.memory` measures.

python -m mmtempo.benchmarks.loader.holder 2000000000 1 8
"""

from __future__ import annotations

import multiprocessing
import sys
import time

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset
from mmengine.logging import MMLogger

from mmtempo.datasets.cached_dataset import CachedDataset
from mmtempo.datasets.transforms.fast_pack_seg_inputs import FastPackSegInputs
from mmtempo.datasets.transforms.fast_random_crop import FastRandomCrop
from mmtempo.loaders import PrefetchDataLoader, build_prefetch_dataloader

BATCH = 4
# Rows and columns of a sample; each pixel has three bytes of image and one of label.
SHAPE = (600, 800)
# Factor of the cache budget for the heads of samples, so that all samples fit.
SPARE = 1.01
# Workers that fill the cache before the measurement.
FILLERS = 2
# Seconds until workers have prefetched their batches and are idle.
REST = 1.0


class Decode(BaseTransform):
    """Transform that makes a random image in place of decoding a file."""

    def transform(self, results: dict) -> dict:
        rng = np.random.default_rng(results['sample_idx'])
        content = np.frombuffer(rng.bytes(4 * SHAPE[0] * SHAPE[1]), np.uint8).reshape(4, *SHAPE)
        results['img'] = np.ascontiguousarray(content[:3].transpose(1, 2, 0))
        return results | dict(gt_seg_map=content[3], seg_fields=['gt_seg_map'], img_shape=SHAPE)


class Samples(BaseDataset):
    """Data set of a given number of random images.

    Args:
        count: Number of samples.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        crop = FastRandomCrop(crop_size=(512, 512))
        super().__init__(pipeline=[Decode(), crop, FastPackSegInputs()])

    def load_data_list(self) -> list[dict]:
        return [dict(img_path=f'{number:08d}.jpg') for number in range(self._count)]


def main() -> None:
    budget, *workers = map(int, sys.argv[1:])
    MMLogger.get_current_instance().setLevel('WARNING')
    dataset = CachedDataset(Samples(budget // (4 * SHAPE[0] * SHAPE[1])), int(SPARE * budget), 1)
    read_all(dataset, FILLERS).close()
    for count in workers:
        # Pages of the cache that a process has not read do not count as its memory.
        loader = read_all(dataset, count)
        if dataset.stats().samples < len(dataset):
            raise RuntimeError(
                f'cache: expected all {len(dataset)} samples, found {dataset.stats()}'
            )
        time.sleep(REST)
        print('ready', count, dataset.stats().used, flush=True)
        sys.stdin.readline()
        loader.close()


def read_all(dataset: CachedDataset, workers: int) -> PrefetchDataLoader:
    """Return a loader whose workers have read each sample of the data set."""
    loader = build_prefetch_dataloader(
        dict(
            dataset=dataset,
            batch_size=BATCH,
            num_workers=workers,
            sampler=dict(type='InfiniteSampler', shuffle=True),
        ),
        seed=0,
        endless=True,
    )
    for _ in range(len(dataset) // BATCH + 1):
        loader.take()
    if len(multiprocessing.active_children()) != workers:
        raise RuntimeError(f'num_workers: expected {workers} workers, found {loader.num_workers}')
    return loader


if __name__ == '__main__':
    main()
