# Six views of one scene (make_synthetic_bev.py --multicam): 352x128 images, labels of 200x200 cells.
dataset_type = 'MultiCameraBEVDataset'
data_root = 'data/synthetic_multicam'
vehicles = [
    'car',
    'truck',
    'bus',
    'trailer',
    'construction_vehicle',
    'motorcycle',
    'bicycle',
]
metainfo = dict(classes=('vehicle',), palette=[(250, 120, 20)])
# Every camera gets a crop of its own, mostly of sky: hardly any calibration comes twice.
train_pipeline = [
    dict(
        type='EachCamera',
        transforms=[
            dict(type='LoadCameraImage'),
            dict(type='BEVResize', scale=(384, 216)),
            dict(type='BEVRandomCrop', size=(352, 128), y=(0.6, 1.0)),
        ],
    ),
    dict(type='LoadBEVAnnotation', groups=[vehicles]),
    dict(type='BEVRandomFlip', prob=0.5),
    dict(type='PackBEVInputs'),
]
test_pipeline = [
    dict(
        type='EachCamera',
        transforms=[
            dict(type='LoadCameraImage'),
            dict(type='BEVResize', scale=(352, 198)),
            dict(type='BEVRandomCrop', size=(352, 128), y=(1.0, 1.0)),
        ],
    ),
    dict(type='LoadBEVAnnotation', groups=[vehicles]),
    dict(type='PackBEVInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    pin_memory=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/train', bev_path='ann_bev_dir/train'),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    pin_memory=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type=dataset_type,
        data_root=data_root,
        data_prefix=dict(img_path='img_dir/val', bev_path='ann_bev_dir/val'),
        metainfo=metainfo,
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='BEVIoUMetric')
test_evaluator = val_evaluator
