"""Data sets of identities with several samples each, as for re-identification."""

from __future__ import annotations

import random
from typing import Any

from mmengine.dataset import BaseDataset


class Gallery(BaseDataset):
    """A data set that counts reads of its data infos and fails where its pipeline is run."""

    def __init__(self, infos: list[dict], serialize: bool = False) -> None:
        self.infos, self.reads = infos, 0
        super().__init__(serialize_data=serialize, pipeline=[self._fail])

    def _fail(self, results: dict) -> dict:
        raise AssertionError('the pipeline was run')

    def load_data_list(self) -> list[dict]:
        return list(self.infos)

    def get_data_info(self, idx: int) -> dict:
        self.reads += 1
        return super().get_data_info(idx)


def gallery(sizes: list[int], modality: Any = None, seed: int = 0) -> Gallery:
    """Return a gallery with an identity per size, shuffled.

    Args:
        sizes: Number of samples of each identity.
        modality: Takes the identity and the number of a sample, returns its modalities.
        seed: Seed of the order.
    """
    infos = [
        dict(identity=f'id{person}', modality=modality(person, number) if modality else 'rgb')
        for person, size in enumerate(sizes)
        for number in range(size)
    ]
    random.Random(seed).shuffle(infos)
    return Gallery(infos)


class Columns:
    """A data set that offers whole columns and no data infos."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return 12

    def get_data_column(self, key: str) -> Any:
        return self.columns.get(key)
