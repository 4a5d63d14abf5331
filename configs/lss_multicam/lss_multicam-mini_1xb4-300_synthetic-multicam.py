# python tools/train.py configs/lss_multicam/lss_multicam-mini_1xb4-300_synthetic-multicam.py
_base_ = [
    '../_base_/models/lss_multicam-mini.py',
    '../_base_/datasets/synthetic_multicam.py',
    '../_base_/schedules/schedule_300.py',
    '../_base_/default_runtime.py',
]
train_dataloader = dict(num_workers=2, pin_memory=False)  # for two cores and no device
val_dataloader = test_dataloader = train_dataloader
default_hooks = dict(checkpoint=dict(interval=100), logger=dict(interval=10))
randomness = dict(seed=0)  # reproducible
