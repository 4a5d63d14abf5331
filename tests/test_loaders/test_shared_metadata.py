"""Spawned workers receive a handle of the sample list, not a copy."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from mmengine.dataset import BaseDataset, ConcatDataset

from mmtempo.loaders.shared_metadata import SharedArray, share_metadata


class Listed(BaseDataset):
    """A dataset of a thousand samples."""

    def load_data_list(self) -> list[dict[str, Any]]:
        return [dict(img_path=f'pictures/{number}.png', number=number) for number in range(1000)]


def test_sample_list_is_shared() -> None:
    parts = [Listed(), Listed(lazy_init=True)]
    parts[1].full_init()
    whole = ConcatDataset(parts)
    before = [one.get_data_info(7) for one in parts]
    size = len(ForkingPickler.dumps(parts[0]))
    share_metadata(whole)
    assert [one.get_data_info(7) for one in parts] == before
    assert all(type(one.data_bytes) is SharedArray for one in parts)
    assert len(ForkingPickler.dumps(parts[0])) < size - parts[0].data_bytes.nbytes / 2
    copy = pickle.loads(ForkingPickler.dumps(parts[0]))
    assert copy.get_data_info(999) == parts[0].get_data_info(999)
    parts[0].data_bytes[:4] = 17
    assert (copy.data_bytes[:4] == 17).all()  # the same memory


def test_slice_is_pickled_as_plain_array() -> None:
    whole = Listed()
    share_metadata(whole)
    part = pickle.loads(pickle.dumps(whole.data_bytes[2:5]))
    assert type(part) is np.ndarray
    assert np.array_equal(part, whole.data_bytes[2:5])


def test_other_datasets_are_unchanged() -> None:
    for dataset in (object(), [1, 2], Listed(serialize_data=False)):
        share_metadata(dataset)
    assert not isinstance(getattr(dataset, 'data_bytes', None), SharedArray)
