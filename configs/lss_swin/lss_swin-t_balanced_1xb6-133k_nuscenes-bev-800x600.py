# python tools/train.py configs/lss_swin/lss_swin-t_balanced_1xb6-133k_nuscenes-bev-800x600.py
_base_ = ['./lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py', '../_base_/tempo/balanced.py']
train_dataloader = dict(batch_size=6, **_base_.tempo.loader)
optim_wrapper = dict(
    type='SparseAmpOptimWrapper', optimizer=dict(lr=3e-4, fused=True), **_base_.tempo.amp
)
train_cfg = dict(max_iters=133334, val_interval=26667)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=133333)]
default_hooks = dict(checkpoint=dict(interval=3333))
auto_scale_lr = dict(base_batch_size=6)
custom_hooks = [*_base_.custom_hooks, dict(type='ModelTuningHook', **_base_.tempo.tune)]
