# The model at a size that a CPU trains in minutes: three stages, stride 16, no pretraining.
# Priors: share of valid cells with each class in the synthetic set, in the order of the bits.
ground = (0.34, 0.017, 0.17, 0.05)
vehicles = (0.013, 0.008, 0.01, 0.006, 0.001)
small = (0.0007, 0.0005, 0.0006, 0.0002, 0.0007)
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
    view_transform=dict(
        type='LiftSplatShoot',
        in_channels=128,
        out_channels=32,
        stride=16,
        ground=2.2,  # a few hundred steps are too few to learn depth from scratch
    ),
    decode_head=dict(
        type='BEVPyramidHead',
        in_channels=32,
        channels=64,
        num_blocks=(2, 1),
        groups=8,  # 16 groups would have two channels each
        priors=ground + vehicles + small,
    ),
)
