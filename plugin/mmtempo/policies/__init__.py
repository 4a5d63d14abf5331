"""How a training is to use its machine, as data, and how any config is made to follow it."""

from .apply import apply_policy
from .policy import KEY, POLICIES, find_policy, load_policy, of_policy

__all__ = ['KEY', 'POLICIES', 'apply_policy', 'find_policy', 'load_policy', 'of_policy']
