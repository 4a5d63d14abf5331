# Replacements of stock parts in mmseg's configs, by type. They have a separate key, since sibling
# bases must not share keys; the baseline leaves assign them.
custom_imports = dict(imports=['mmtempo'], allow_failed_imports=False)
parts = dict(
    hooks=dict(
        runtime_info=dict(type='SparseRuntimeInfoHook'),
        timer=dict(type='ThroughputMonitorHook'),
        logger=dict(type='SparseLoggerHook'),
        checkpoint=dict(type='AsyncCheckpointHook', max_keep_ckpts=3),  # stock keeps all files
    ),
    wrapper=dict(type='SparseOptimWrapper'),
    preprocessor=dict(type='SparseSegDataPreProcessor'),
    loops=[
        dict(type='PrefetchIterBasedTrainLoop'),
        dict(type='PrefetchValLoop'),
        dict(type='PrefetchTestLoop'),
    ],
    metric=dict(type='StreamingIoUMetric'),  # constant memory, whatever the size of the validation set
    fcn_head=dict(type='SparseAccuracyHead', head='FCNHead'),  # for lists of heads
)
