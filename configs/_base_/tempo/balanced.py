# Half as many samples again, in half precision: about the memory that float32 took. For most.
tempo = dict(
    policy='balanced',
    batch=1.5,  # 4 -> 6; at 8 the field notes' card did half the iterations, at 6 it did not
    accumulate=1,
    lr='linear',  # 2e-4 at 4 -> 3e-4 at 6
    length='samples',
    amp=dict(loss_scale='dynamic'),  # float16 on a GPU; bfloat16, which needs no scale, on a CPU
    loader=dict(num_workers='auto', prefetch_factor=4, pin_memory=True, persistent_workers=True),
    fused=True,  # one kernel an update, and overflows are decided on the device
    tune=dict(tf32=True),  # for what autocast leaves in float32
    cudnn_benchmark=True,
    evaluate_every=2.0,  # each one stops the training: 20k -> 40k iterations' worth of samples
    keep_checkpoints=3,
)
