"""Data sets of camera images with BEV labels."""

from . import transforms
from .multi_camera_bev_dataset import MultiCameraBEVDataset
from .nuscenes_bev_dataset import NuScenesBEVDataset

__all__ = ['MultiCameraBEVDataset', 'NuScenesBEVDataset', 'transforms']
