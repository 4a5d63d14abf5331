# python tools/train.py configs/pspnet/pspnet_r50-d8_memory-first_4xb4-40k_cityscapes-512x1024.py
_base_ = ['./pspnet_r50-d8_4xb2-80k_cityscapes-512x1024.py', '../_base_/tempo/memory_first.py']
train_dataloader = dict(batch_size=4, **_base_.tempo.loader)
optim_wrapper = dict(
    type='SparseAmpOptimWrapper', optimizer=dict(lr=0.02, fused=True), **_base_.tempo.amp
)
train_cfg = dict(max_iters=40000, val_interval=8000)
param_scheduler = [dict(_base_.param_scheduler[0], end=40000)]
default_hooks = dict(checkpoint=dict(interval=4000))
auto_scale_lr = dict(base_batch_size=16)
env_cfg = dict(cudnn_benchmark=_base_.tempo.cudnn_benchmark)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
