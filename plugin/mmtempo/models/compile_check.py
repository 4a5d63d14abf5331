"""Whether torch can compile here, and is asked to in a way that it understands."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch

MODES = ('default', 'reduce-overhead', 'max-autotune', 'max-autotune-no-cudagraphs')


def check_compile(options: Any, key: str) -> None:
    """TypeError or ValueError for what `torch.compile` would not take; None is fine.

    Args:
        options: Arguments of `torch.compile`, and `modules`.
        key: Of the config, for error messages.
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
            near = difflib.get_close_matches(str(name), known, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else '.'
            raise ValueError(f'{key} has no {name!r}{hint} Expected some of {", ".join(known)}')
    mode = options.get('mode')
    if mode is not None and mode not in MODES:
        raise ValueError(f'{key}.mode must be one of {", ".join(MODES)}, found {mode!r}')


def why_not_compiled(device: torch.device, options: dict) -> str | None:
    """What goes wrong with compiling the smallest of functions; None if nothing does.

    That takes a moment, but a compiler that is missing would else be found out in the first
    iteration, when it is too late to do without.

    Args:
        device: What for.
        options: Arguments of `torch.compile`.
    """
    try:
        torch.compile(_smallest, **options)(torch.ones(2, device=device))
    except Exception as error:  # of dynamo, inductor, triton, a C++ compiler, the system
        reason = ' '.join(str(error).strip().partition('\n\n')[0].split())  # then comes advice
        return f'the compiler does not work here: {type(error).__name__}: {reason}'
    return None


def _smallest(values: torch.Tensor) -> torch.Tensor:
    return values.sin() + 1
