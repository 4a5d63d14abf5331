"""Find, load and change configs as the flags of a tool require."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import os
import os.path as osp
from typing import Any

from mmengine.config import Config
from mmengine.registry import OPTIM_WRAPPERS
from mmengine.runner import Runner

from mmtempo.policies import apply_policy, is_policy_key, load_policy
from mmtempo.policies.drop_in import describe, optim_wrapper_class, zero_wait
from mmtempo.policies.workload import accumulation_of
from mmtempo.replacements import WITH_AMP
from mmtempo.utils.suggest import did_you_mean

from .run import LaunchError, print_message, print_once

# Keys that `Runner.from_cfg` and the tools read although a config need not have them.
RUNNER_KEYS = frozenset(inspect.signature(Runner.__init__).parameters) | {
    'activation_checkpointing',
    'auto_scale_lr',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'model_wrapper_cfg',
    'runner_type',
    'strategy',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
}


def resolve_config_path(name: str) -> str:
    """Return the path of a config.

    Args:
        name: A file, or `package::path` for a config of an installed package; the suffix `.py` may
            be left out.
    """
    if '::' in name:
        package, _, relative = name.partition('::')
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or spec.origin is None:
            raise LaunchError(f'config {name}: package {package!r} is not installed')
        home = osp.dirname(spec.origin)
        # An installed package has its configs in `.mim`; a checkout has them at its top level.
        roots = [osp.join(home, '.mim', 'configs'), osp.join(home, '..', '..', 'configs')]
        root = next((root for root in roots if osp.isdir(root)), roots[0])
        path = osp.normpath(osp.join(root, relative))
    else:
        path = name
    if not path.endswith(('.py', '.json', '.yaml', '.yml')):
        path += '.py'
    if osp.isfile(path):
        return path
    folder = osp.dirname(path) or '.'
    if osp.isdir(folder):
        prefix = osp.join(folder, '')
        hint = did_you_mean(osp.basename(path), os.listdir(folder), 3, prefix, cutoff=0.5)
    else:
        hint = f'; the folder {folder} does not exist'
    raise LaunchError(f'config {name}: no such file{hint}')


def load_config(args: argparse.Namespace) -> Config:
    """Read the config, apply --tempo, --zero-wait, --cfg-options, --launcher and --work-dir.

    Args:
        args: Parsed flags of `add_config_arguments`, or of `add_common_arguments` and
            `add_overlays`.
    """
    path = resolve_config_path(args.config)
    cfg = Config.fromfile(path)
    options = args.cfg_options or {}
    if getattr(args, 'tempo', None) is not None:
        _check_options(cfg, {key: options[key] for key in options if not is_policy_key(key)})
        _follow_policy(cfg, args.tempo, options)
    else:
        if getattr(args, 'zero_wait', False):
            changes = zero_wait(cfg, keep=options)
            print_once(f'--zero-wait {describe(changes)}')
        _check_options(cfg, options)
    cfg.merge_from_dict(options)
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = osp.join('work_dirs', osp.splitext(osp.basename(path))[0])
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return cfg


def _follow_policy(cfg: Config, name: str, options: dict[str, Any]) -> None:
    """Apply --tempo, with the keys of the policy that --cfg-options overrides."""
    try:
        policy = load_policy(name, options)
        changes = apply_policy(cfg, policy, options)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    print_once(f'--tempo {policy["policy"]} {describe(changes)}')


def _check_options(cfg: Config, options: dict[str, Any]) -> None:
    """Raise for an unknown top-level key; print a message for a similar key further down.

    Nothing reads an unknown top-level key, so it is a mistake. A deeper key may be an argument
    that the config does not set.
    """
    for option in options:
        node: Any = cfg
        path = option.split('.')
        for depth, part in enumerate(path):
            if not isinstance(node, (Config, dict)):
                break
            keys = set(node.keys()) if depth else set(node.keys()) | RUNNER_KEYS
            if part in keys:
                node = node.get(part)
                continue
            hint = did_you_mean(part, keys, prefix=''.join(f'{one}.' for one in path[:depth]))
            message = f'--cfg-options {option}: the config has no {".".join(path[: depth + 1])}'
            if depth == 0:
                raise LaunchError(message + hint)
            if hint:
                print_message(f'{message}, so it is added{hint}')
            break


def enable_amp(cfg: Config) -> None:
    """Apply --amp: mixed precision with a dynamic loss scale."""
    cls = optim_wrapper_class(cfg)
    if cls in map(OPTIM_WRAPPERS.get, WITH_AMP.values()):
        print_message('--amp: no effect; optim_wrapper.type already has mixed precision')
        return
    amp = next((amp for name, amp in WITH_AMP.items() if cls is OPTIM_WRAPPERS.get(name)), None)
    if cls is None or amp is None:
        raise LaunchError(
            f'--amp: optim_wrapper.type must be {" or ".join(WITH_AMP)}, found '
            f'{cfg.optim_wrapper.get("type")}; set its mixed precision in the config instead'
        )
    cfg.optim_wrapper.type = amp
    cfg.optim_wrapper.loss_scale = 'dynamic'


def enable_auto_scale_lr(cfg: Config) -> None:
    """Apply --auto-scale-lr: scale the learning rate with the samples of an update."""
    scale = cfg.get('auto_scale_lr') or {}
    if 'base_batch_size' not in scale:
        raise LaunchError(
            '--auto-scale-lr: the config has no auto_scale_lr.base_batch_size, the samples of an '
            'update for which its learning rate is; add it with --cfg-options '
            'auto_scale_lr.base_batch_size=N'
        )
    cfg.auto_scale_lr.enable = True
    batches = accumulation_of(cfg.get('optim_wrapper'))
    if batches > 1:
        # mmengine divides the samples of one iteration by this, without accumulation.
        base = cfg.auto_scale_lr.base_batch_size
        cfg.auto_scale_lr.base_batch_size = base / batches
        print_message(
            f'--auto-scale-lr: auto_scale_lr.base_batch_size {base:g} -> {base / batches:g}, since '
            f'an update accumulates {batches} batches'
        )


def enable_pictures(cfg: Config, show: bool, show_dir: str | None, wait_time: float) -> None:
    """Apply --show and --show-dir: enable the visualization hook of the config.

    Args:
        cfg: The config; it is changed.
        show: Whether to show pictures in windows.
        show_dir: Folder for pictures, or None.
        wait_time: Seconds for which each picture is shown.
    """
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    if hook is None:
        raise LaunchError(
            '--show and --show-dir need default_hooks.visualization in the config, for example '
            "dict(type='BEVVisualizationHook') or mmseg's dict(type='SegVisualizationHook')"
        )
    hook.draw = True
    if hook.type == 'BEVVisualizationHook':
        if show:
            raise LaunchError('--show does not work with BEV models; use --show-dir DIR')
        hook.out_dir = show_dir
        return
    if show:
        hook.show, hook.wait_time = True, wait_time
    if show_dir:
        cfg.visualizer.save_dir = show_dir


def enable_tta(cfg: Config) -> None:
    """Apply --tta: wrap the model in the `tta_model` of the config."""
    if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
        missing = [key for key in ('tta_model', 'tta_pipeline') if key not in cfg]
        raise LaunchError(f'--tta needs {" and ".join(missing)} in the config')
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.tta_model.module = cfg.model
    cfg.model = cfg.tta_model


def keep_predictions(cfg: Config, folder: str) -> None:
    """Apply --out: let the metric of mmseg write its predictions to a folder."""
    evaluator = cfg.test_evaluator
    if not isinstance(evaluator, dict) or evaluator.get('type') not in (
        'IoUMetric',
        'CityscapesMetric',
    ):
        raise LaunchError(
            '--out: test_evaluator must be a single IoUMetric or CityscapesMetric; use --show-dir '
            'for BEV models'
        )
    evaluator.update(output_dir=folder, keep_results=True)
