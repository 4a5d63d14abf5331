"""Model parts that do not synchronize with the device, and adaptations of any model."""

from .sparse_accuracy_head import build_sparse_accuracy_head, sparse_accuracy
from .sparse_seg_data_preprocessor import SparseSegDataPreProcessor

__all__ = ['SparseSegDataPreProcessor', 'build_sparse_accuracy_head', 'sparse_accuracy']
