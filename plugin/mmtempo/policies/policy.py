"""Find policies by name or path, and check them."""

from __future__ import annotations

import os.path as osp
from collections.abc import Callable, Mapping
from typing import Any

from mmengine.config import Config

from mmtempo.utils.checks import is_number, is_whole
from mmtempo.utils.suggest import did_you_mean

KEY = 'tempo'
POLICIES = ('baseline', 'balanced', 'speed_first', 'memory_first', 'grad_accum')
LR_RULES = ('linear', 'sqrt', 'keep')
LENGTHS = ('samples', 'iterations')
LOADER = ('num_workers', 'prefetch_factor', 'pin_memory', 'persistent_workers')
TUNE = ('channels_last', 'tf32', 'activation_checkpointing', 'compile')
AMP = ('loss_scale', 'dtype')
DATA = ('fast_transforms',)


def _is_positive(value: Any) -> bool:
    return is_number(value, above=0)


def _has_only(keys: tuple[str, ...]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Mapping) and set(value) <= set(keys)


# Key of a policy -> what its value must be, in words and as a check.
CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    'policy': ('a name', lambda value: isinstance(value, str) and bool(value)),
    'batch': ("a number above 0, the factor for the config's batch", _is_positive),
    'accumulate': ('the batches of an update, 1 or more', is_whole),
    'lr': (f'one of {", ".join(LR_RULES)}', lambda value: value in LR_RULES),
    'length': (f'one of {", ".join(LENGTHS)}', lambda value: value in LENGTHS),
    'amp': (
        f'None, or a dict of {", ".join(AMP)}',
        lambda value: value is None or _has_only(AMP)(value),
    ),
    'data': (
        f'a dict of {", ".join(DATA)}, which are True or False',
        lambda value: (
            _has_only(DATA)(value) and all(isinstance(item, bool) for item in value.values())
        ),
    ),
    'loader': (f'a dict of {", ".join(LOADER)}', _has_only(LOADER)),
    'fused': ('True or False', lambda value: isinstance(value, bool)),
    'tune': (f'a dict of {", ".join(TUNE)}', _has_only(TUNE)),
    'cudnn_benchmark': ('True or False', lambda value: isinstance(value, bool)),
    'evaluate_every': ("a number above 0, the factor for the config's interval", _is_positive),
    'keep_checkpoints': ('1 or more, or -1 for all', lambda value: value == -1 or is_whole(value)),
}


def folder() -> str:
    """Return the folder of this package's policies, in a checkout or an installed package."""
    home = osp.dirname(osp.dirname(osp.abspath(__file__)))
    roots = (osp.join(home, '.mim', 'configs'), osp.join(home, '..', '..', 'configs'))
    root = next((root for root in roots if osp.isdir(root)), roots[0])
    return osp.normpath(osp.join(root, '_base_', KEY))


def find_policy(name: str) -> str:
    """Return the path of a policy file.

    Args:
        name: One of `POLICIES`, or the path of a file.
    """
    if name in POLICIES:
        return osp.join(folder(), f'{name}.py')
    if name.endswith('.py'):
        if osp.isfile(name):
            return name
        raise ValueError(f'--tempo {name}: there is no such file')
    raise ValueError(
        f'--tempo {name}: there is no such policy; take one of {", ".join(POLICIES)}, or the path '
        f'of a file with tempo=dict(...), as those in {folder()}'
        f'{did_you_mean(name.replace("-", "_"), POLICIES)}'
    )


def is_policy_key(key: str) -> bool:
    """Return whether a dotted key, as of --cfg-options, belongs to the policy."""
    return key == KEY or key.startswith(f'{KEY}.')


def load_policy(name: str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a policy as a dict, complete and checked.

    Args:
        name: One of `POLICIES`, or the path of a file.
        overrides: Options of --cfg-options, such as `{'tempo.lr': 'sqrt'}`; those of other keys
            are ignored. Defaults to None.
    """
    path = find_policy(name)
    found = Config.fromfile(path)
    if KEY not in found:
        raise ValueError(f'--tempo {name}: {path} has no {KEY}=dict(...)')
    for key, value in (overrides or {}).items():
        if is_policy_key(key):
            parent, _, _ = key.removeprefix(f'{KEY}.').partition('.')
            if found[KEY].get(parent, {}) is None:  # None takes no keys, as in amp=None
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
            raise ValueError(f'{KEY}.{key}: a policy has no such key{did_you_mean(key, CHECKS)}')
        expected, is_right = CHECKS[key]
        if not is_right(value):
            raise ValueError(f'{KEY}.{key} must be {expected}, found {value!r}')
