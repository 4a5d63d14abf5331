# What the others are compared with: the config's own batch in float32, on mmtempo's hooks and loops.
tempo = dict(
    policy='baseline',
    batch=1.0,  # times the config's
    accumulate=1,  # batches to an update
    lr='linear',  # with the samples of an update; or 'sqrt', 'keep'
    length='samples',  # of the training: keeps the samples seen; or 'iterations'
    amp=None,
    loader=dict(num_workers='auto', prefetch_factor=2, pin_memory=True, persistent_workers=True),
    fused=False,
    tune=dict(),  # of the model, see ModelTuningHook
    cudnn_benchmark=True,  # crops have one size, so the search pays off
    evaluate_every=1.0,  # times the config's interval
    keep_checkpoints=3,
)
