"""Metrics."""

from .streaming_iou_metric import StreamingIoUMetric

__all__ = ['StreamingIoUMetric']
