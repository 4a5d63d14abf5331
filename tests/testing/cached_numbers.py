"""A data set of small files with numbers, and transforms to cache or not."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset
from mmengine.structures import BaseDataElement

from mmtempo.utils.rng import seed_generators


class Decode(BaseTransform):
    """A transform that reads a file and counts its calls in this process."""

    calls = 0

    def transform(self, results: dict) -> dict | None:
        type(self).calls += 1
        content = Path(results['img_path']).read_bytes()
        if content == b'none':
            return None
        if content == b'broken':
            raise OSError(f'{results["img_path"]} is broken')
        results['img'] = np.resize(np.frombuffer(content, np.uint8), (40, 50, 3))
        return results


class Pass(BaseTransform):
    def transform(self, results: dict) -> dict:
        return results


class Holds(Pass):
    """A transform with an attribute."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Shift(BaseTransform):
    """A random transform whose name does not reveal it."""

    def transform(self, results: dict) -> dict:
        results['img'] = results['img'] + np.uint8(np.random.randint(250) + 1)
        return results


class Pack(BaseTransform):
    """A transform that returns tensors over the memory of the array, at several depths."""

    def transform(self, results: dict) -> dict:
        image = torch.from_numpy(results['img'])
        sample = BaseDataElement(metainfo=dict(number=results['sample_idx']), image=image)
        return dict(inputs=image, data_samples=sample, pair=(results['img'], 1), more=[image])


class Numbers(BaseDataset):
    METAINFO = dict(classes=('a', 'b'))

    def __init__(self, folder: str, count: int = 6, **options: Any) -> None:
        self.folder, self.count = folder, count
        # Serialization runs the garbage collector, which is slow in a test session.
        super().__init__(**dict(serialize_data=False) | options)

    def load_data_list(self) -> list[dict]:
        return [dict(img_path=f'{self.folder}/{number}.bin') for number in range(self.count)]

    def get_cat_ids(self, index: int) -> list[int]:
        return [index]


def numbers(folder: str, *rest: BaseTransform, **options: Any) -> Numbers:
    """Return a data set that decodes, then applies `rest`, by default `Shift` and `Pack`."""
    return Numbers(folder, pipeline=[Decode(), *(rest or [Shift(), Pack()])], **options)


def drawn(dataset: Any, order: Sequence[int], seed: int = 3) -> list[Any]:
    """Return copies of the samples, each drawn with a seed of its position."""
    samples = []
    for position, index in enumerate(order):
        seed_generators(seed, position)
        samples.append(copy.deepcopy(dataset[index]))
    return samples


def decoded(dataset: Any, order: Sequence[int]) -> int:
    """Draw samples; return how many of them were decoded in this process."""
    before = Decode.calls
    for index in order:
        dataset[index]
    return Decode.calls - before
