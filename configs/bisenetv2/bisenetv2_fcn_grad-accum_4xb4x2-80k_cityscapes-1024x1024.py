# python tools/train.py configs/bisenetv2/bisenetv2_fcn_grad-accum_4xb4x2-80k_cityscapes-1024x1024.py
_base_ = ['./bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024.py', '../_base_/tempo/grad_accum.py']
train_dataloader = _base_.tempo.loader
optim_wrapper = dict(
    type='SparseAmpOptimWrapper',
    accumulative_counts=_base_.tempo.accumulate,
    optimizer=dict(lr=0.1, fused=True),
    **_base_.tempo.amp,
)
train_cfg = dict(count='updates', max_iters=80000, val_interval=16000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=80000)]
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(base_batch_size=32)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
