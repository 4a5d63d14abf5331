# python tools/train.py configs/bisenetv2/bisenetv2_fcn_balanced_4xb6-107k_cityscapes-1024x1024.py
_base_ = ['./bisenetv2_fcn_4xb4-160k_cityscapes-1024x1024.py', '../_base_/tempo/balanced.py']
train_dataloader = dict(batch_size=6, **_base_.tempo.loader)
optim_wrapper = dict(
    type='SparseAmpOptimWrapper', optimizer=dict(lr=0.075, fused=True), **_base_.tempo.amp
)
train_cfg = dict(max_iters=106667, val_interval=21333)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=106667)]
default_hooks = dict(checkpoint=dict(interval=10667))
auto_scale_lr = dict(base_batch_size=24)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
