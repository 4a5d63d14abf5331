# Settings that do not depend on data, model or schedule. Only this file defines `default_hooks`.
default_scope = 'mmseg'
custom_imports = dict(imports=['mmtempo'], allow_failed_imports=False)

env_cfg = dict(
    cudnn_benchmark=True,  # input sizes are fixed, so kernels are searched for once
    mp_cfg=dict(
        mp_start_method='fork', opencv_num_threads=0
    ),  # workers run in parallel; threads in each would compete
    dist_cfg=dict(backend='nccl'),
)
default_hooks = dict(
    runtime_info=dict(type='SparseRuntimeInfoHook'),
    timer=dict(type='ThroughputMonitorHook'),
    logger=dict(type='SparseLoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='AsyncCheckpointHook', by_epoch=False, interval=5000, max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    visualization=dict(type='BEVVisualizationHook'),
)
custom_hooks = [dict(type='RunSummaryHook')]
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
log_processor = dict(by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
