# Twice the batch on a small card: activations are recomputed instead of kept.
tempo = dict(
    policy='memory_first',
    batch=2.0,  # 4 -> 8
    accumulate=1,
    lr='linear',
    length='samples',
    data=dict(fast_transforms=False),
    amp=dict(loss_scale='dynamic'),  # halves the activations that are kept
    loader=dict(num_workers='auto', prefetch_factor=2, pin_memory=True, persistent_workers=True),
    fused=True,  # the for-each form would copy all gradients
    # A third more computation saves most of the memory: blocks keep only their inputs.
    tune=dict(tf32=True, activation_checkpointing='auto'),
    cudnn_benchmark=False,  # the search for kernels allocates workspaces
    evaluate_every=2.0,
    keep_checkpoints=3,
)
