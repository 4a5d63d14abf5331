"""Check the options of `torch.compile`, and whether it works on this machine."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from mmtempo.utils.suggest import did_you_mean

MODES = ('default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-cudagraphs')


def check_compile(options: Any, key: str) -> None:
    """Raise TypeError or ValueError for options that `torch.compile` does not take.

    Args:
        options: Arguments of `torch.compile`, and `modules`; or None.
        key: Config key of the options, for error messages.
    """
    if options is None:
        return
    if not isinstance(options, dict):
        example = "dict(modules='auto', mode='reduce-overhead')"
        raise TypeError(f'{key}: expected a dict as {example}, or None, found {options!r}')
    known = ['modules', *inspect.signature(torch.compile).parameters]
    known.remove('model')
    for name in options:
        if name not in known:
            raise ValueError(
                f'{key}: expected keys {", ".join(known)}, found {name!r}'
                f'{did_you_mean(name, known)}'
            )
    mode = options.get('mode')
    if mode is not None and mode not in MODES:
        raise ValueError(f'{key}.mode must be one of {", ".join(MODES)}, found {mode!r}')


def why_not_compiled(device: torch.device, options: dict) -> str | None:
    """Compile a minimal function; return the reason if that fails, None otherwise.

    It takes a few seconds. Without it, a missing compiler would be noticed in the first
    iteration only, when the model has been prepared for compilation.

    Args:
        device: The device to compile for.
        options: Arguments of `torch.compile`.
    """
    try:
        torch.compile(_minimal, **options)(torch.ones(2, device=device))
    except Exception as error:  # from dynamo, inductor, triton, a C++ compiler or the system
        reason = ' '.join(str(error).strip().partition('\n\n')[0].split())  # without the advice
        return f'the compiler does not work here: {type(error).__name__}: {reason}'
    return None


def _minimal(values: torch.Tensor) -> torch.Tensor:
    return values.sin() + 1
