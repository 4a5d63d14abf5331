"""The BEV label: classes and packed format.

A cell may carry several classes, so a label has one bit per class: bits 0-13 are `CLASSES` in
order, bit 14 marks ignored cells. Bit 15 is never set, so the 16 bits of the file fit into
`int16`, which torch can shift and pickle, unlike `uint16`. A packed label takes 78 kB per sample
from disk to device, instead of 4.7 MB as int64 planes.
"""

from __future__ import annotations

import numpy as np
import torch

CLASSES = (
    'drivable_area',
    'ped_crossing',
    'walkway',
    'carpark',
    'car',
    'truck',
    'bus',
    'trailer',
    'construction_vehicle',
    'pedestrian',
    'motorcycle',
    'bicycle',
    'traffic_cone',
    'barrier',
)
IGNORE_BIT = 14

# Share of valid cells with each class in nuScenes.
PRIORS = (
    0.44679,
    0.02407,
    0.14491,
    0.02994,
    0.02086,
    0.00477,
    0.00156,
    0.00189,
    0.00084,
    0.00119,
    0.00019,
    0.00012,
    0.00031,
    0.00176,
)

# RGB colors of the classes; later classes are drawn over earlier ones.
PALETTE = (
    (128, 128, 140),
    (230, 225, 160),
    (190, 130, 190),
    (90, 110, 180),
    (250, 120, 20),
    (220, 40, 40),
    (250, 200, 0),
    (150, 60, 20),
    (170, 160, 50),
    (30, 60, 230),
    (200, 20, 140),
    (20, 190, 190),
    (60, 200, 60),
    (90, 50, 110),
)


def pack_label(occupancy: np.ndarray, ignore: np.ndarray) -> np.ndarray:
    """Pack boolean planes (classes, rows, columns) and an ignore mask into a uint16 label."""
    bits = (1 << np.arange(len(occupancy), dtype=np.uint16)).reshape(-1, 1, 1)
    packed = (occupancy.astype(np.uint16) * bits).sum(0, dtype=np.uint16)
    return packed | (ignore.astype(np.uint16) << np.uint16(IGNORE_BIT))


def unpack_label(
    packed: torch.Tensor, num_classes: int = len(CLASSES)
) -> tuple[torch.Tensor, torch.Tensor]:
    """Unpack int16 labels (..., rows, columns) on their device, without a synchronization.

    Args:
        packed: The packed labels.
        num_classes: Number of classes in the labels. Defaults to 14.

    Returns:
        Occupancy (..., num_classes, rows, columns) and validity (..., rows, columns), both bool.
    """
    bits = torch.arange(num_classes, dtype=torch.int16, device=packed.device)
    planes = packed.unsqueeze(-3).bitwise_right_shift(bits.view(-1, 1, 1))
    occupancy = planes.bitwise_and(1).bool()
    valid = packed.bitwise_right_shift(IGNORE_BIT).bitwise_and(1) == 0
    return occupancy, valid
