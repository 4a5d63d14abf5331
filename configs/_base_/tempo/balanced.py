# 1.5 x the batch in half precision, at about the memory of float32. Suits most trainings.
tempo = dict(
    policy='balanced',
    batch=1.5,  # 4 -> 6; the field notes' card halved its iteration rate at 8, but not at 6
    accumulate=1,
    lr='linear',  # 2e-4 for 4 samples -> 3e-4 for 6
    length='samples',
    data=dict(fast_transforms=False),
    amp=dict(loss_scale='dynamic'),  # float16 on a GPU; bfloat16 on a CPU, which needs no scale
    loader=dict(num_workers='auto', prefetch_factor=4, pin_memory=True, persistent_workers=True),
    fused=True,  # one kernel per update; overflows are handled on the device
    tune=dict(tf32=True),  # for operations that autocast leaves in float32
    cudnn_benchmark=True,
    evaluate_every=2.0,  # an evaluation stops the training: 20k -> 40k iterations of samples
    keep_checkpoints=3,
)
