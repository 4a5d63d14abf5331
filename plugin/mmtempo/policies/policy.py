"""Policies: found by name or path, and checked."""

from __future__ import annotations

import difflib
import os.path as osp
from collections.abc import Callable, Mapping
from typing import Any

from mmengine.config import Config

KEY = 'tempo'
POLICIES = ('baseline', 'balanced', 'speed_first', 'memory_first', 'grad_accum')
LR_RULES = ('linear', 'sqrt', 'keep')
LENGTHS = ('samples', 'iterations')
LOADER = ('num_workers', 'prefetch_factor', 'pin_memory', 'persistent_workers')
TUNE = ('channels_last', 'tf32', 'activation_checkpointing', 'compile')
AMP = ('loss_scale', 'dtype')


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _has_only(keys: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and set(value) <= set(keys)


# By key: what it has to be, in words and as a check.
CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    'policy': ('a name', lambda value: isinstance(value, str) and bool(value)),
    'batch': ("a number above 0, times the config's batch", _is_positive),
    'accumulate': ('batches to an update, 1 or more', _is_count),
    'lr': (f'one of {", ".join(LR_RULES)}', lambda value: value in LR_RULES),
    'length': (f'one of {", ".join(LENGTHS)}', lambda value: value in LENGTHS),
    'amp': (
        f'None, or a dict of {", ".join(AMP)}',
        lambda value: value is None or _has_only(AMP)(value),
    ),
    'loader': (f'a dict of {", ".join(LOADER)}', _has_only(LOADER)),
    'fused': ('True or False', lambda value: isinstance(value, bool)),
    'tune': (f'a dict of {", ".join(TUNE)}', _has_only(TUNE)),
    'cudnn_benchmark': ('True or False', lambda value: isinstance(value, bool)),
    'evaluate_every': ("a number above 0, times the config's interval", _is_positive),
    'keep_checkpoints': ('a number, or -1 for all', lambda value: value == -1 or _is_count(value)),
}


def folder() -> str:
    """Where the policies of this package lie: in a checkout, or in what pip has installed."""
    home = osp.dirname(osp.dirname(osp.abspath(__file__)))
    roots = (osp.join(home, '.mim', 'configs'), osp.join(home, '..', '..', 'configs'))
    root = next((root for root in roots if osp.isdir(root)), roots[0])
    return osp.normpath(osp.join(root, '_base_', KEY))


def find_policy(name: str) -> str:
    """The file of a policy: one of ours by name, or somebody's own by its path."""
    if name in POLICIES:
        return osp.join(folder(), f'{name}.py')
    if name.endswith('.py'):
        if osp.isfile(name):
            return name
        raise ValueError(f'--tempo {name}: there is no such file')
    close = difflib.get_close_matches(name.replace('-', '_'), POLICIES, n=1)
    meant = f'; did you mean {close[0]}?' if close else ''
    raise ValueError(
        f'--tempo {name}: there is no such policy; take one of {", ".join(POLICIES)}, or the path '
        f'of a file with tempo=dict(...), as those in {folder()}{meant}'
    )


def of_policy(key: str) -> bool:
    """Whether a dotted key, as of --cfg-options, is one of the policy's own."""
    return key == KEY or key.startswith(f'{KEY}.')


def load_policy(name: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A policy as a dict, complete and checked.

    Args:
        name: One of `POLICIES`, or the path of a file.
        overrides: What --cfg-options says of it, as `{'tempo.lr': 'sqrt'}`. Defaults to None.
    """
    path = find_policy(name)
    found = Config.fromfile(path)
    if KEY not in found:
        raise ValueError(f'--tempo {name}: {path} has no {KEY}=dict(...)')
    for key, value in (overrides or {}).items():
        if of_policy(key):
            parent, _, _ = key.removeprefix(f'{KEY}.').partition('.')
            if found[KEY].get(parent, {}) is None:  # a part of what the policy has switched off
                found[KEY][parent] = {}
            found.merge_from_dict({key: value})
    policy = found[KEY].to_dict()
    _check(policy, path)
    return policy


def _check(policy: Mapping[str, Any], path: str) -> None:
    missing = sorted(set(CHECKS) - set(policy))
    if missing:
        raise ValueError(f'{path}: {KEY} lacks {", ".join(missing)}')
    for key, value in policy.items():
        if key not in CHECKS:
            close = difflib.get_close_matches(key, CHECKS, n=1)
            meant = f'; did you mean {close[0]}?' if close else ''
            raise ValueError(f'{KEY}.{key}: a policy has no such key{meant}')
        expected, is_right = CHECKS[key]
        if not is_right(value):
            raise ValueError(f'{KEY}.{key} must be {expected}, found {value!r}')
