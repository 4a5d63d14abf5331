"""Stock parts and the parts of mmtempo that replace them, by name: the only such table."""

from __future__ import annotations

from typing import Any

# Stock class -> our registered type. Names instead of classes: importing them takes seconds.
OURS = {
    'mmengine.hooks.RuntimeInfoHook': 'SparseRuntimeInfoHook',
    'mmengine.hooks.IterTimerHook': 'ThroughputMonitorHook',
    'mmengine.hooks.LoggerHook': 'SparseLoggerHook',
    'mmengine.hooks.CheckpointHook': 'AsyncCheckpointHook',
    'mmengine.optim.OptimWrapper': 'SparseOptimWrapper',
    'mmengine.optim.AmpOptimWrapper': 'SparseAmpOptimWrapper',
    'mmseg.models.data_preprocessor.SegDataPreProcessor': 'SparseSegDataPreProcessor',
    'mmengine.runner.IterBasedTrainLoop': 'PrefetchIterBasedTrainLoop',
    'mmengine.runner.EpochBasedTrainLoop': 'PrefetchEpochBasedTrainLoop',
    'mmengine.runner.ValLoop': 'PrefetchValLoop',
    'mmengine.runner.TestLoop': 'PrefetchTestLoop',
}
# The same by the bare name of the stock class.
BY_NAME = {path.rpartition('.')[2]: ours for path, ours in OURS.items()}
# The same for transforms: samples are equal to the bit with the same random numbers.
TRANSFORMS = {
    'mmcv.transforms.LoadImageFromFile': 'FastLoadImageFromFile',
    'mmseg.datasets.transforms.LoadAnnotations': 'FastLoadAnnotations',
    'mmseg.datasets.transforms.RandomCrop': 'FastRandomCrop',
    'mmseg.datasets.transforms.RandomFlip': 'FastRandomFlip',
    'mmseg.datasets.transforms.PhotoMetricDistortion': 'FastPhotoMetricDistortion',
    'mmseg.datasets.transforms.PackSegInputs': 'FastPackSegInputs',
}
# Replaces each segmentation head that counts its accuracy by a mask.
ACCURACY_HEAD = 'SparseAccuracyHead'
# Hooks that mmengine adds where a config has no such key: stock class and arguments.
DEFAULT_HOOKS: dict[str, tuple[str, dict[str, Any]]] = {
    'runtime_info': ('mmengine.hooks.RuntimeInfoHook', {}),
    'timer': ('mmengine.hooks.IterTimerHook', {}),
    'logger': ('mmengine.hooks.LoggerHook', {}),
    'checkpoint': ('mmengine.hooks.CheckpointHook', dict(interval=1)),
}
# Optimizer wrapper -> the one of the same kind with mixed precision.
WITH_AMP = {'OptimWrapper': 'AmpOptimWrapper', 'SparseOptimWrapper': 'SparseAmpOptimWrapper'}
# Our type -> why it replaces the stock one.
REASONS = {
    'SparseRuntimeInfoHook': 'stock reads each loss in each iteration',
    'ThroughputMonitorHook': 'stock counts saves and evaluations as data, and reports no cause',
    'SparseLoggerHook': 'stock reads what it logs at once',
    'AsyncCheckpointHook': 'stock blocks the training until the file is written',
    'SparseOptimWrapper': 'stock reads the norm when it clips gradients',
    'SparseAmpOptimWrapper': 'stock reads the norm when it clips, and looks for overflows',
    'SparseSegDataPreProcessor': 'stock waits for each tensor that it copies',
    'PrefetchIterBasedTrainLoop': (
        'stock replays the data on resume and collates one tensor at a time'
    ),
    'PrefetchEpochBasedTrainLoop': (
        'stock resumes at the start of an epoch and restarts the loader in each'
    ),
    'PrefetchValLoop': 'stock collates one tensor at a time',
    'PrefetchTestLoop': 'stock collates one tensor at a time',
    ACCURACY_HEAD: 'stock picks pixels by a mask to count its accuracy',
}
