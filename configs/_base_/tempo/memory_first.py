# Twice the batch on a small card: activations are computed again instead of kept.
tempo = dict(
    policy='memory_first',
    batch=2.0,  # 4 -> 8
    accumulate=1,
    lr='linear',
    length='samples',
    amp=dict(loss_scale='dynamic'),  # halves what is kept
    loader=dict(num_workers='auto', prefetch_factor=2, pin_memory=True, persistent_workers=True),
    fused=True,  # no copies of all gradients, as the for-each form makes
    # A third more computing, for most of the memory: blocks keep their inputs only.
    tune=dict(tf32=True, activation_checkpointing='auto'),
    cudnn_benchmark=False,  # its search asks for workspaces
    evaluate_every=2.0,
    keep_checkpoints=3,
)
