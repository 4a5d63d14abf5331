# The config's own batch in half precision: most iterations a second, and most people's results.
tempo = dict(
    policy='speed_first',
    batch=1.0,
    accumulate=1,
    lr='linear',  # which leaves it as it is, at this batch
    length='samples',
    amp=dict(loss_scale='dynamic'),
    # Iterations are shortest here, so a late batch costs most: workers go far ahead.
    loader=dict(num_workers='auto', prefetch_factor=8, pin_memory=True, persistent_workers=True),
    fused=True,
    tune=dict(tf32=True, channels_last=True),  # the layout that tensor cores want for convolutions
    cudnn_benchmark=True,
    evaluate_every=2.0,
    keep_checkpoints=3,
)
