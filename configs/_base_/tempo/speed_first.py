# Batch and schedule of the config in half precision, for the most iterations per second.
tempo = dict(
    policy='speed_first',
    batch=1.0,
    accumulate=1,
    lr='linear',  # unchanged at this batch
    length='samples',
    data=dict(fast_transforms=False),
    amp=dict(loss_scale='dynamic'),
    # Short iterations suffer most from a late batch, so workers prefetch far ahead.
    loader=dict(num_workers='auto', prefetch_factor=8, pin_memory=True, persistent_workers=True),
    fused=True,
    tune=dict(tf32=True, channels_last=True),  # the layout of tensor cores for convolutions
    cudnn_benchmark=True,
    evaluate_every=2.0,
    keep_checkpoints=3,
)
