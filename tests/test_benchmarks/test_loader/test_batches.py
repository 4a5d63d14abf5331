"""The counted size of a batch is what torch sends."""

from __future__ import annotations

import pytest
import torch

from mmtempo.benchmarks.loader.batches import PLANES, bev_batches, weigh
from mmtempo.benchmarks.loader.pictures import write_pictures

BATCH = 3
PICTURE, CELLS = 3 * 800 * 600, 196 * 200


def test_storages_count_once_and_are_not_shared() -> None:
    whole = torch.zeros(4, 1000, dtype=torch.uint8)
    batch = dict(views=[whole[0], whole[1]], other=torch.zeros(10, dtype=torch.int64), text='a')
    parcel = weigh(batch)
    assert (parcel.segments, parcel.shared) == (2, 4000 + 80)
    assert 0 < parcel.pickled < 2000
    assert parcel.bytes == parcel.pickled + parcel.shared
    assert not whole.is_shared()
    assert weigh([1, 2]).segments == weigh([torch.zeros(0)]).segments == 0


def test_pickled_bytes_count() -> None:
    assert weigh(b'x' * 5000).pickled - weigh(b'x' * 1000).pickled == 4000


def test_bev_batches_have_the_same_labels(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = str(tmp_path_factory.mktemp('bev'))
    write_pictures(root, BATCH, (160, 90))
    batches = bev_batches(root, BATCH)
    parcels = {name: weigh(batch) for name, batch in batches.items()}
    assert {name: (one.shared, one.segments) for name, one in parcels.items()} == {
        'stock, int64 planes': (BATCH * (PICTURE + 8 * PLANES * CELLS), 2 * BATCH),
        'stock, our packed label': (BATCH * (PICTURE + 2 * CELLS), 2 * BATCH),
        'ours': (BATCH * (PICTURE + 2 * CELLS), 2),
    }
    planes, ours = batches['stock, int64 planes'], batches['ours']
    for left, right in zip(planes['data_samples'], ours['data_samples']):
        bits = left.gt_sem_seg.data
        assert bits.dtype == torch.int64
        weights = 2 ** torch.arange(PLANES)
        packed = (bits * weights[:, None, None]).sum(0)
        assert torch.equal(packed, right.gt_bev.long())
        assert packed.any()
