# python tools/train.py configs/bisenetv2/bisenetv2_fcn_speed-first_4xb4-160k_ade20k-512x512.py
_base_ = ['./bisenetv2_fcn_4xb4-160k_ade20k-512x512.py', '../_base_/tempo/speed_first.py']
train_dataloader = _base_.tempo.loader
optim_wrapper = dict(type='SparseAmpOptimWrapper', optimizer=dict(fused=True), **_base_.tempo.amp)
train_cfg = dict(val_interval=32000)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
