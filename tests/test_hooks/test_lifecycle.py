"""Every hook of ours lives through building, training, resuming and testing in a real Runner."""

from __future__ import annotations

import pytest
from mmengine.config import Config
from mmengine.registry import HOOKS
from mmengine.runner import Runner

OURS = sorted(
    name for name, cls in HOOKS.module_dict.items() if cls.__module__.startswith('mmtempo.')
)


# Those that stand in for a stock hook take its place; two of them would do its work twice.
PLACES = dict(
    AsyncCheckpointHook='checkpoint',
    SparseLoggerHook='logger',
    SparseRuntimeInfoHook='runtime_info',
    ThroughputMonitorHook='timer',
)


def test_all_hooks_are_found() -> None:
    assert {'RunSummaryHook', 'BEVVisualizationHook', *PLACES} <= set(OURS)


@pytest.mark.parametrize('name', OURS)
def test_lifecycle(name: str, tiny_cfg: Config) -> None:
    tiny_cfg.default_hooks.pop('visualization')
    tiny_cfg.custom_hooks = []
    if name in PLACES:
        tiny_cfg.default_hooks[PLACES[name]].type = name
    else:
        tiny_cfg.custom_hooks.append(dict(type=name))
    Runner.from_cfg(tiny_cfg).train()
    tiny_cfg.resume = True
    tiny_cfg.experiment_name += '_resumed'
    tiny_cfg.train_cfg.update(max_iters=6, val_interval=6)
    runner = Runner.from_cfg(tiny_cfg)
    runner.train()
    assert runner.iter == 6
    runner.test()


@pytest.mark.parametrize('name', OURS)
def test_docstring_has_example_and_keys(name: str) -> None:
    cls = HOOKS.module_dict[name]
    text = cls.__doc__ or ''
    assert f"type='{name}'" in text, 'a config example'
    assert 'keys' in text, 'which keys it logs, or that it logs none'
    assert 'priority' in vars(cls), 'a priority of its own, with the reason beside it'
