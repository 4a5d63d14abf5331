# Six views per scene (make_synthetic_bev.py --multicam): 352x128 images, labels of 200x200 cells.
_base_ = ['./nuscenes_bev.py']
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
# Each camera is cropped separately, mostly in the sky, so few calibrations repeat.
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
six_cameras = dict(type='MultiCameraBEVDataset', data_root=data_root, metainfo=metainfo)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline, **six_cameras))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline, **six_cameras))
test_dataloader = val_dataloader
