# 200k iterations at batch 4; AdamW without decay on norms and position tables.
optim_wrapper = dict(
    type='SparseOptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-4, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={'relative_position_bias_table': dict(decay_mult=0.0)},
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=200000),
]
train_cfg = dict(type='PrefetchIterBasedTrainLoop', max_iters=200000, val_interval=20000)
val_cfg = dict(type='PrefetchValLoop')
test_cfg = dict(type='PrefetchTestLoop')
# The learning rate is for 4 samples per iteration; --auto-scale-lr scales it linearly.
auto_scale_lr = dict(enable=False, base_batch_size=4)
