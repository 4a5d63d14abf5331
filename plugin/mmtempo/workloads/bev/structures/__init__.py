"""Data structures of BEV segmentation: samples, calibration, grid, labels."""

from .bev_data_sample import BEVDataSample
from .calibration import Calibration

__all__ = ['BEVDataSample', 'Calibration']
