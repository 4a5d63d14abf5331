# python tools/train.py configs/pspnet/pspnet_r50-d8_balanced_4xb3-53k_cityscapes-512x1024.py
_base_ = ['./pspnet_r50-d8_4xb2-80k_cityscapes-512x1024.py', '../_base_/tempo/balanced.py']
train_dataloader = dict(batch_size=3, **_base_.tempo.loader)
optim_wrapper = dict(
    type='SparseAmpOptimWrapper', optimizer=dict(lr=0.015, fused=True), **_base_.tempo.amp
)
train_cfg = dict(max_iters=53334, val_interval=10667)
param_scheduler = [dict(_base_.param_scheduler[0], end=53333)]
default_hooks = dict(checkpoint=dict(interval=5333))
auto_scale_lr = dict(base_batch_size=12)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
