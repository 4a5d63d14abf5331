"""Packed labels keep all classes and ignored cells."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmtempo.workloads.bev.structures.labels import (
    CLASSES,
    IGNORE_BIT,
    PALETTE,
    PRIORS,
    pack_label,
    unpack_label,
)


def test_tables_of_classes_have_the_same_length() -> None:
    assert len(CLASSES) == len(PRIORS) == len(PALETTE) == IGNORE_BIT == 14


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_unpack_inverts_pack(seed: int) -> None:
    rng = np.random.default_rng(seed)
    occupancy = rng.random((14, 5, 7)) < 0.4
    ignore = rng.random((5, 7)) < 0.5
    packed = pack_label(occupancy, ignore)
    assert packed.dtype == np.uint16
    assert packed.max() < 1 << 15
    unpacked, valid = unpack_label(torch.from_numpy(packed.view(np.int16)))
    np.testing.assert_array_equal(unpacked.numpy(), occupancy)
    np.testing.assert_array_equal(valid.numpy(), ~ignore)


def test_each_bit_is_one_class() -> None:
    packed = torch.tensor([[1 << bit for bit in range(15)]], dtype=torch.int16)
    occupancy, valid = unpack_label(packed)
    assert torch.equal(occupancy[:, 0, :14], torch.eye(14, dtype=torch.bool))
    assert not occupancy[:, 0, 14].any()
    assert valid[0].tolist() == [True] * 14 + [False]


def test_batch_dimensions_come_first() -> None:
    occupancy, valid = unpack_label(torch.zeros(3, 196, 200, dtype=torch.int16))
    assert occupancy.shape == (3, 14, 196, 200)
    assert valid.shape == (3, 196, 200)
