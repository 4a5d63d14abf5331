# python tools/train.py configs/lss_swin/lss_swin-t_speed-first_1xb4-200k_nuscenes-bev-800x600.py
_base_ = ['./lss_swin-t_1xb4-200k_nuscenes-bev-800x600.py', '../_base_/tempo/speed_first.py']
train_dataloader = _base_.tempo.loader
optim_wrapper = dict(type='SparseAmpOptimWrapper', optimizer=dict(fused=True), **_base_.tempo.amp)
train_cfg = dict(val_interval=40000)
custom_hooks = [*_base_.custom_hooks, dict(type='ModelTuningHook', **_base_.tempo.tune)]
