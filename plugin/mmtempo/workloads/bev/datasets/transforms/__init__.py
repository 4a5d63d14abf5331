"""Transforms of BEV samples."""

from .bev_random_crop import BEVRandomCrop
from .bev_random_flip import BEVRandomFlip
from .bev_resize import BEVResize
from .each_camera import EachCamera
from .load_bev_annotation import LoadBEVAnnotation
from .load_camera_image import LoadCameraImage
from .pack_bev_inputs import PackBEVInputs

__all__ = [
    'BEVRandomCrop',
    'BEVRandomFlip',
    'BEVResize',
    'EachCamera',
    'LoadBEVAnnotation',
    'LoadCameraImage',
    'PackBEVInputs',
]
