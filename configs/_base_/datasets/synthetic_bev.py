# Small images of the synthetic set (tools/dataset_converters/make_synthetic_bev.py), for CPUs.
_base_ = ['./nuscenes_bev.py']
data_root = 'data/synthetic_bev'
train_pipeline = [
    dict(type='LoadCameraImage'),
    dict(type='LoadBEVAnnotation'),
    dict(type='BEVResize', scale=(400, 224)),
    dict(type='BEVRandomFlip', prob=0.5),
    dict(type='PackBEVInputs'),
]
test_pipeline = [
    dict(type='LoadCameraImage'),
    dict(type='LoadBEVAnnotation'),
    dict(type='BEVResize', scale=(400, 224)),
    dict(type='PackBEVInputs'),
]
train_dataloader = dict(
    num_workers=2,
    pin_memory=False,  # pinned memory is of use with a device only
    dataset=dict(data_root=data_root, pipeline=train_pipeline),
)
val_dataloader = dict(
    num_workers=2,
    pin_memory=False,
    dataset=dict(data_root=data_root, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
