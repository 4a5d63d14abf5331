# python tools/train.py configs/pspnet/pspnet_r50-d8_speed-first_4xb2-80k_cityscapes-512x1024.py
_base_ = ['./pspnet_r50-d8_4xb2-80k_cityscapes-512x1024.py', '../_base_/tempo/speed_first.py']
train_dataloader = _base_.tempo.loader
optim_wrapper = dict(type='SparseAmpOptimWrapper', optimizer=dict(fused=True), **_base_.tempo.amp)
train_cfg = dict(val_interval=16000)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
