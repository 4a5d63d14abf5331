"""What mmseg's own models need so that they don't wait for the device."""

from . import transforms
from .sparse_accuracy_head import build_sparse_accuracy_head, sparse_accuracy
from .sparse_seg_data_preprocessor import SparseSegDataPreProcessor
from .streaming_iou_metric import StreamingIoUMetric

__all__ = [
    'SparseSegDataPreProcessor',
    'StreamingIoUMetric',
    'build_sparse_accuracy_head',
    'sparse_accuracy',
    'transforms',
]
