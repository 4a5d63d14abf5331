# python tools/train.py configs/segformer/segformer_mit-b0_speed-first_8xb2-160k_ade20k-512x512.py
_base_ = ['./segformer_mit-b0_8xb2-160k_ade20k-512x512.py', '../_base_/tempo/speed_first.py']
train_dataloader = _base_.tempo.loader
optim_wrapper = dict(type='SparseAmpOptimWrapper', optimizer=dict(fused=True), **_base_.tempo.amp)
train_cfg = dict(val_interval=32000)
custom_hooks = [dict(type='ModelTuningHook', **_base_.tempo.tune)]
