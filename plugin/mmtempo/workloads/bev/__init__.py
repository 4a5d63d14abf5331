"""BEV segmentation: data sets, models, a metric and synthetic data."""

from .datasets import MultiCameraBEVDataset, NuScenesBEVDataset, transforms
from .evaluation import BEVIoUMetric
from .models import (
    BEVDataPreprocessor,
    BEVPyramidHead,
    BEVSegmentor,
    LiftSplatShoot,
    OccupancyLoss,
)
from .structures import BEVDataSample, Calibration

__all__ = [
    'BEVDataPreprocessor',
    'BEVDataSample',
    'BEVIoUMetric',
    'BEVPyramidHead',
    'BEVSegmentor',
    'Calibration',
    'LiftSplatShoot',
    'MultiCameraBEVDataset',
    'NuScenesBEVDataset',
    'OccupancyLoss',
    'transforms',
]
