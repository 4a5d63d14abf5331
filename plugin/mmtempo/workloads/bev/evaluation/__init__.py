"""Metrics of BEV segmentation."""

from .bev_iou_metric import BEVIoUMetric

__all__ = ['BEVIoUMetric']
