"""Keys of findings for a verdict that has headlines only, as it was before issue 23."""

from __future__ import annotations

from collections.abc import Sequence

# Part of a headline, with the part of the reasons that tells the cause if several have it -> key.
KEYS = (
    ('Nothing to fix', '', 'healthy'),
    ('No cost exceeds', '', 'healthy'),
    ('Too short', '', 'short'),
    ('Nothing was measured', '', 'nothing'),
    ('Late data on rank', '', 'rank: data'),
    ('Slow steps on rank', '', 'rank: step'),
    ('Evaluation takes', '', 'evaluation'),
    ('Ending the loader', '', 'epochs'),
    ('CheckpointHook takes', '', 'save'),
    ('LoggerHook takes', '', 'logging'),
    ('Visualizer takes', '', 'logging'),
    ('Preprocessing and copies', '', 'copies'),
    ('Garbage collection costs', '', 'gc'),
    ('Delay on the host', 'waiting for a disk', 'data: disk'),
    ('Delay on the host', 'CPU limit', 'cpu quota'),
    ('Delay on the host', '', 'busy machine'),
    ('Delay on the device', 'torch compiled', 'recompilation'),
    ('Delay on the device', 'new input shape', 'shapes'),
    ('Delay on the device', 'throttled', 'device throttled'),
    ('Delay on the device', '', 'idle device'),
    ('Sustained slowdown', '', 'pace'),
    ('memory costs', 'wapping', 'swap'),
    ('memory costs', '', 'memory'),
    ('Page faults', '', 'memory'),
    ('device is idle', '', 'idle device'),
    ('unknown cause', '', 'unexplained'),
    ('unexplained', '', 'unexplained'),
)


def key_of(headline: str, reasons: str, overrides: Sequence[str]) -> str:
    """Return the key of the finding that a headline names."""
    if headline.startswith('Waiting for data'):
        if 'Make samples cheaper' in reasons:
            return 'data: cpu'
        is_more = any('num_workers' in override for override in overrides)
        return 'data: workers' if is_more else 'data: late'
    for part, reason, key in KEYS:
        if part in headline and reason in reasons:
            return key
    return 'hook' if ' takes ' in headline or 'Hooks take' in headline else 'unknown'
