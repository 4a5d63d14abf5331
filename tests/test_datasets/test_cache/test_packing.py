"""Unpacked samples equal packed ones, and large arrays are views."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from mmtempo.datasets.cache.arena import MAGIC
from mmtempo.datasets.cache.packing import pack, unpack
from tests.testing.trees import tensors


def row_of(sample: object) -> memoryview:
    return memoryview(b''.join(pack(sample)))


ARRAYS = dict(
    large=np.arange(3000, dtype=np.uint16).reshape(30, 100),
    small=np.arange(9.0).reshape(3, 3),
    fortran=np.asfortranarray(np.arange(4000.0).reshape(40, 100)),
    flipped=np.arange(3000, dtype=np.uint8).reshape(30, 100)[:, ::-1],
    empty=np.zeros((0, 5)),
    texts=np.array(['a', None], dtype=object),
    scalar=np.array(3),
)


@pytest.mark.parametrize('name', list(ARRAYS))
def test_arrays_survive_packing(name: str) -> None:
    array = ARRAYS[name]
    row = row_of(dict(before='x' * 77, array=array, again=array))
    assert len(row) % 64 == 0
    found = unpack(row)
    assert found['array'].dtype == array.dtype
    assert np.array_equal(found['array'], array)
    assert found['again'] is found['array']
    assert found['array'].flags.writeable == (array.nbytes < 1024)


def test_large_arrays_are_aligned_views() -> None:
    row = memoryview(bytearray(row_of([np.full(size, 7, np.uint8) for size in (1500, 1025, 4096)])))
    start = np.frombuffer(row, np.uint8).ctypes.data
    for array in unpack(row):
        offset = array.ctypes.data - start
        assert 0 < offset < len(row)
        assert offset % 64 == 0
        array[0] = 1
        assert row[offset] == 1


@pytest.mark.parametrize('name', list(tensors()))
def test_tensors_are_writable_copies(name: str) -> None:
    tensor = tensors()[name]
    found = unpack(row_of([tensor]))[0]
    assert found.dtype == tensor.dtype
    assert found.requires_grad == tensor.requires_grad
    assert torch.equal(found.nan_to_num(), tensor.nan_to_num())
    if found.numel():
        found.detach().zero_()  # a segmentation fault on read-only memory


def test_moved_modules_need_a_new_version() -> None:
    """A file of another version is replaced; one that names missing modules cannot be read."""
    names = set(re.findall(rb'mmtempo[\w.]*', row_of(list(tensors().values()))))
    version = MAGIC.to_bytes(8, 'little')
    assert (version, names) == (b'mmtempo3', {b'mmtempo.datasets.cache.packing'})
