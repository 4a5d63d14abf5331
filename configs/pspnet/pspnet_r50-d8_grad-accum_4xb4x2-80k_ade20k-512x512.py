# python tools/train.py configs/pspnet/pspnet_r50-d8_grad-accum_4xb4x2-80k_ade20k-512x512.py
_base_ = ['./pspnet_r50-d8_4xb4-160k_ade20k-512x512.py', '../_base_/tempo/grad_accum.py']
train_dataloader = _base_.tempo.loader
optim_wrapper = dict(
    type='SparseAmpOptimWrapper',
    accumulative_counts=_base_.tempo.accumulate,
    optimizer=dict(lr=0.02, fused=True),
    **_base_.tempo.amp,
)
train_cfg = dict(count='updates', max_iters=80000, val_interval=16000)
param_scheduler = [dict(_base_.param_scheduler[0], end=80000)]
default_hooks = dict(checkpoint=dict(interval=8000))
auto_scale_lr = dict(base_batch_size=32)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
