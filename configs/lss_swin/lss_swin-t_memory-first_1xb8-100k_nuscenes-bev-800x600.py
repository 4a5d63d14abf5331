# python tools/train.py configs/lss_swin/lss_swin-t_memory-first_1xb8-100k_nuscenes-bev-800x600.py
_base_ = ['./lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py', '../_base_/tempo/memory_first.py']
train_dataloader = dict(batch_size=8, **_base_.tempo.loader)
optim_wrapper = dict(
    type='SparseAmpOptimWrapper', optimizer=dict(lr=4e-4, fused=True), **_base_.tempo.amp
)
train_cfg = dict(max_iters=100000, val_interval=20000)
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=100000)]
default_hooks = dict(checkpoint=dict(interval=2500))
auto_scale_lr = dict(base_batch_size=8)
env_cfg = dict(cudnn_benchmark=_base_.tempo.cudnn_benchmark)
custom_hooks = [*_base_.custom_hooks, dict(type='ModelTuningHook', **_base_.tempo.tune)]
