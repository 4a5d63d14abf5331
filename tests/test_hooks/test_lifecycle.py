"""Build, train, resume and test with each registered hook in a Runner."""

from __future__ import annotations

import pytest
from mmengine.config import Config
from mmengine.registry import HOOKS
from mmengine.runner import Runner

OURS = sorted(
    name for name, cls in HOOKS.module_dict.items() if cls.__module__.startswith('mmtempo.')
)

# Default hook that each of ours replaces; with both of them its work would be done twice.
REPLACES = dict(
    AsyncCheckpointHook='checkpoint',
    SparseLoggerHook='logger',
    SparseRuntimeInfoHook='runtime_info',
    ThroughputMonitorHook='timer',
)


def test_all_hooks_are_found() -> None:
    assert {'RunSummaryHook', 'BEVVisualizationHook', *REPLACES} <= set(OURS)


def build_train_resume_and_test(cfg: Config) -> None:
    Runner.from_cfg(cfg).train()
    cfg.resume = True
    cfg.experiment_name += '_resumed'
    cfg.train_cfg.update(max_iters=6, val_interval=6)
    runner = Runner.from_cfg(cfg)
    runner.train()
    assert runner.iter == 6
    runner.test()


def add(cfg: Config, name: str) -> None:
    if name in REPLACES:
        cfg.default_hooks[REPLACES[name]].type = name
    else:
        cfg.custom_hooks.append(dict(type=name))


def test_all_hooks_together(tiny_cfg: Config) -> None:
    tiny_cfg.custom_hooks = []
    for name in OURS:
        add(tiny_cfg, name)
    build_train_resume_and_test(tiny_cfg)


@pytest.mark.slow
@pytest.mark.parametrize('name', OURS)
def test_one_hook_among_stock_hooks(name: str, tiny_cfg: Config) -> None:
    tiny_cfg.default_hooks.pop('visualization')
    tiny_cfg.custom_hooks = []
    add(tiny_cfg, name)
    build_train_resume_and_test(tiny_cfg)


@pytest.mark.parametrize('name', OURS)
def test_docstring_has_example_and_keys(name: str) -> None:
    cls = HOOKS.module_dict[name]
    text = cls.__doc__ or ''
    assert f"type='{name}'" in text, 'a config example'
    assert 'keys' in text, 'a table of logged keys, or that it logs none'
    assert 'priority' in vars(cls), 'a priority, with its reason'
