# 300 iterations: enough for a mini model to learn on a CPU.
_base_ = ['./schedule_200k.py']
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=20),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=20, end=300),
]
train_cfg = dict(max_iters=300, val_interval=300)
