# nuScenes BEV segmentation, one camera per sample: 1600x900 images, labels of 196x200 cells.
dataset_type = 'NuScenesBEVDataset'
data_root = 'data/nuscenes_bev'
train_pipeline = [
    dict(type='LoadCameraImage'),
    dict(type='LoadBEVAnnotation'),
    dict(type='BEVResize', scale=(800, 600)),
    dict(type='BEVRandomFlip', prob=0.5),
    dict(type='PackBEVInputs'),
]
test_pipeline = [
    dict(type='LoadCameraImage'),
    dict(type='LoadBEVAnnotation'),
    dict(type='BEVResize', scale=(800, 600)),
    dict(type='PackBEVInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/train', bev_path='ann_bev_dir/train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=4,
    persistent_workers=True,
    pin_memory=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/val', bev_path='ann_bev_dir/val'),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='BEVIoUMetric')
test_evaluator = val_evaluator
