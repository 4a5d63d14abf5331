# What takes the place of stock parts in mmseg's configs, by type. It lies under a key of its own,
# since sibling bases may share none; the baseline leaves put it where it belongs.
custom_imports = dict(imports=['mmtempo'], allow_failed_imports=False)
parts = dict(
    hooks=dict(
        runtime_info=dict(type='SparseRuntimeInfoHook'),
        timer=dict(type='ThroughputMonitorHook'),
        logger=dict(type='SparseLoggerHook'),
        checkpoint=dict(type='AsyncCheckpointHook', max_keep_ckpts=3),  # stock keeps all
    ),
    wrapper=dict(type='SparseOptimWrapper'),
    preprocessor=dict(type='SparseSegDataPreProcessor'),
    loops=[
        dict(type='PrefetchIterBasedTrainLoop'),
        dict(type='PrefetchValLoop'),
        dict(type='PrefetchTestLoop'),
    ],
    metric=dict(type='StreamingIoUMetric'),  # its memory does not grow with the validation set
    fcn_head=dict(type='SparseAccuracyHead', head='FCNHead'),  # for lists of heads
)
