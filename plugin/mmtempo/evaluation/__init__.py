"""Metrics, and evaluations that are repeated on resume."""

from .streaming_iou_metric import StreamingIoUMetric

__all__ = ['StreamingIoUMetric']
