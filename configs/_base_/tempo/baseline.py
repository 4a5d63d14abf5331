# The reference for other policies: batch of the config, float32, hooks and loops of mmtempo.
tempo = dict(
    policy='baseline',
    batch=1.0,  # factor for the batch of the config
    accumulate=1,  # batches per update
    lr='linear',  # scaling with the samples of an update; or 'sqrt', 'keep'
    length='samples',  # kept constant over the training; or 'iterations'
    data=dict(fast_transforms=False),
    amp=None,
    loader=dict(num_workers='auto', prefetch_factor=2, pin_memory=True, persistent_workers=True),
    fused=False,
    tune=dict(),  # arguments of ModelTuningHook
    cudnn_benchmark=True,  # crops have one size, so kernels are searched for once
    evaluate_every=1.0,  # factor for the interval of the config
    keep_checkpoints=3,
)
