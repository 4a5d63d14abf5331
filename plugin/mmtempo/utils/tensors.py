"""Properties of tensors that decide whether their bytes can be copied."""

from __future__ import annotations

from typing import Any

import torch

# Bytes. Tensors that are packed into one buffer start at multiples of it, as torch aligns them.
ALIGNMENT = 64


def is_plain(value: Any) -> bool:
    """Return whether a value is a tensor on the host that its elements describe completely.

    So it has no gradient, and neither quantization nor a lazy conjugation or negation. It may
    be empty or have gaps.
    """
    return (
        type(value) is torch.Tensor
        and value.device.type == 'cpu'
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested)
        and not (value.is_conj() or value.is_neg())
    )
