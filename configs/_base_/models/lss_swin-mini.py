# The same model at a size that a CPU trains in minutes: three stages, stride 16, no pretraining.
model = dict(
    type='BEVSegmentor',
    data_preprocessor=dict(type='BEVDataPreprocessor'),
    backbone=dict(
        type='SwinTransformer',
        embed_dims=32,
        depths=[1, 1, 2],
        num_heads=[2, 4, 8],
        strides=(4, 2, 2),
        window_size=7,
        drop_path_rate=0.0,
        out_indices=(2,),
    ),
    view_transform=dict(type='LiftSplatShoot', in_channels=128, out_channels=32, stride=16),
    decode_head=dict(type='BEVPyramidHead', in_channels=32, channels=48, num_blocks=(2, 1)),
)
