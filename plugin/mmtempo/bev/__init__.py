"""BEV segmentation: data, model and metric."""

from . import transforms
from .bev_data_preprocessor import BEVDataPreprocessor
from .bev_data_sample import BEVDataSample
from .bev_iou_metric import BEVIoUMetric
from .bev_pyramid_head import BEVPyramidHead
from .bev_segmentor import BEVSegmentor
from .bev_visualization_hook import BEVVisualizationHook
from .calibration import Calibration
from .errors import BadSampleError
from .lift_splat_shoot import LiftSplatShoot
from .multi_camera_bev_dataset import MultiCameraBEVDataset
from .nuscenes_bev_dataset import NuScenesBEVDataset
from .occupancy_loss import OccupancyLoss

__all__ = [
    'BEVDataPreprocessor',
    'BEVDataSample',
    'BEVIoUMetric',
    'BEVPyramidHead',
    'BEVSegmentor',
    'BEVVisualizationHook',
    'BadSampleError',
    'Calibration',
    'LiftSplatShoot',
    'MultiCameraBEVDataset',
    'NuScenesBEVDataset',
    'OccupancyLoss',
    'transforms',
]
