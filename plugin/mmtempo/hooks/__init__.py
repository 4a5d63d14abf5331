"""Registered hooks: thin adapters between mmengine's Runner and the rest of the package."""

from .async_checkpoint_hook import AsyncCheckpointHook
from .bev_visualization_hook import BEVVisualizationHook
from .model_tuning_hook import ModelTuningHook
from .progressive_training_hook import ProgressiveTrainingHook
from .run_summary_hook import RunSummaryHook
from .sparse_logger_hook import SparseLoggerHook
from .sparse_runtime_info_hook import SparseRuntimeInfoHook
from .throughput_monitor_hook import ThroughputMonitorHook

__all__ = [
    'AsyncCheckpointHook',
    'BEVVisualizationHook',
    'ModelTuningHook',
    'ProgressiveTrainingHook',
    'RunSummaryHook',
    'SparseLoggerHook',
    'SparseRuntimeInfoHook',
    'ThroughputMonitorHook',
]
