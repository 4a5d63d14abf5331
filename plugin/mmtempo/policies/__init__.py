"""Policies: how a training uses its machine, as data, and how a config is changed to follow one."""

from .apply import apply_policy
from .policy import KEY, POLICIES, find_policy, is_policy_key, load_policy

__all__ = ['KEY', 'POLICIES', 'apply_policy', 'find_policy', 'is_policy_key', 'load_policy']
