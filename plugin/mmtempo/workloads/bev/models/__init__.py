"""Models of BEV segmentation."""

from .bev_data_preprocessor import BEVDataPreprocessor
from .bev_pyramid_head import BEVPyramidHead
from .bev_segmentor import BEVSegmentor
from .lift_splat_shoot import LiftSplatShoot
from .occupancy_loss import OccupancyLoss

__all__ = [
    'BEVDataPreprocessor',
    'BEVPyramidHead',
    'BEVSegmentor',
    'LiftSplatShoot',
    'OccupancyLoss',
]
