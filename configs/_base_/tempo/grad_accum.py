# Twice the samples per update in the memory of one batch. An iteration is an update.
tempo = dict(
    policy='grad_accum',
    batch=1.0,
    accumulate=2,  # 2 x 4 equals a batch of 8, where 8 do not fit or run slowly
    lr='linear',  # for 8 samples
    length='samples',
    data=dict(fast_transforms=False),
    amp=dict(loss_scale='dynamic'),
    loader=dict(num_workers='auto', prefetch_factor=4, pin_memory=True, persistent_workers=True),
    fused=True,  # one kernel per update
    tune=dict(tf32=True),
    cudnn_benchmark=True,
    evaluate_every=2.0,
    keep_checkpoints=3,
)
