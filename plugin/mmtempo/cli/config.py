"""From a command line to a config that is ready to run; shared by the tools."""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import inspect
import os
import os.path as osp
import sys
from typing import Any

import torch
from mmengine.config import Config, DictAction
from mmengine.device import get_device
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import OPTIM_WRAPPERS, RUNNERS
from mmengine.runner import Runner

from mmtempo.checkpoint.loading import register_safe_downloads
from mmtempo.checkpoint.resume import newest_of, out_dirs_of
from mmtempo.device.streams import cpu_has_bfloat16
from mmtempo.policies import KEY, POLICIES, apply_policy, load_policy, of_policy
from mmtempo.policies.drop_in import describe, optim_wrapper_class, zero_wait
from mmtempo.policies.workload import accumulation_of
from mmtempo.replacements import WITH_AMP
from mmtempo.system.folder_lock import FolderInUseError, FolderLock

from .run import LaunchError

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

# What a launcher passes through the environment.
LAUNCHER_NEEDS = {
    'pytorch': ('RANK', 'WORLD_SIZE', 'MASTER_ADDR'),
    'slurm': ('SLURM_PROCID', 'SLURM_NTASKS', 'SLURM_NODELIST'),
    'mpi': ('OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_SIZE', 'MASTER_ADDR'),
}

# The wrapper for mixed precision that goes with one for plain float32.


class _OptionAction(DictAction):
    """mmengine's KEY=VALUE parser, with a message where there is no `=`."""

    def __call__(
        self, parser: Any, namespace: Any, values: Any, option_string: str | None = None
    ) -> None:
        wrong = [value for value in values if '=' not in value]
        if wrong:
            parser.error(f'{option_string} {wrong[0]}: expected KEY=VALUE')
        super().__call__(parser, namespace, values, option_string)


def _say(message: str) -> None:
    """There is no run yet whose log it could go to."""
    print(message, file=sys.stderr)


def _say_once(message: str) -> None:
    """From one of the processes of a run."""
    if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
        _say(message)


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags that training and testing share; the same as mmseg's."""
    add_config_arguments(parser)
    parser.add_argument('--work-dir', help='folder for logs and checkpoints')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none')
    # torchrun sets LOCAL_RANK; the older torch.distributed.launch passes a flag.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """The config and its overrides, and what `load_config` takes where no flag says it."""
    parser.set_defaults(work_dir=None, launcher='none', local_rank=0)
    parser.add_argument('config', help='config file, or package::path such as mmseg::fcn/...')
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_OptionAction,
        metavar='KEY=VALUE',
        help='override settings of the config, for example train_dataloader.batch_size=2; '
        'lists as key="[a,b]" or key=a,b, nested ones as key="[(a,b),(c,d)]"',
    )


def add_overlays(parser: argparse.ArgumentParser) -> None:
    """The flags of those tools that build a training."""
    parser.add_argument(
        '--tempo',
        metavar='POLICY',
        help=f'make the config follow a policy ({", ".join(POLICIES)}, or a file of your own), '
        'stock parts exchanged as by --zero-wait, and say what that changes; --cfg-options wins',
    )
    parser.add_argument(
        '--zero-wait',
        action='store_true',
        help="exchange stock parts that wait, for device or disk, for mmtempo's, and say which; "
        '--cfg-options wins',
    )


def resolve_config_path(name: str) -> str:
    """Path of a config given as a file or as `package::path`."""
    if '::' in name:
        package, _, relative = name.partition('::')
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        if spec is None or spec.origin is None:
            raise LaunchError(f'config {name}: there is no installed package {package!r}')
        home = osp.dirname(spec.origin)
        # An installed package carries its configs in `.mim`; a checkout has them at its top.
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
    near = sorted(os.listdir(folder)) if osp.isdir(folder) else []
    close = difflib.get_close_matches(osp.basename(path), near, n=3, cutoff=0.5)
    hint = f'; did you mean {" or ".join(osp.join(folder, c) for c in close)}?' if close else ''
    if not osp.isdir(folder):
        hint = f'; the folder {folder} does not exist'
    raise LaunchError(f'config {name}: no such file{hint}')


def load_config(args: argparse.Namespace) -> Config:
    """Read the config, apply --tempo, --zero-wait, --cfg-options, --launcher and --work-dir."""
    path = resolve_config_path(args.config)
    cfg = Config.fromfile(path)
    options = args.cfg_options or {}
    if getattr(args, 'tempo', None) is not None:
        _check_options(cfg, {key: options[key] for key in options if not of_policy(key)})
        _follow(cfg, args.tempo, options)
    else:
        if getattr(args, 'zero_wait', False):
            changes = zero_wait(cfg, keep=options)
            _say_once(f'--zero-wait {describe(changes)}')
        _check_options(cfg, options)
    cfg.merge_from_dict(options)
    cfg.launcher = args.launcher
    if args.work_dir is not None:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = osp.join('work_dirs', osp.splitext(osp.basename(path))[0])
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    return cfg


def _follow(cfg: Config, name: str, options: dict[str, Any]) -> None:
    """--tempo: what the policy makes of the config, and what --cfg-options makes of the policy."""
    try:
        policy = load_policy(name, options)
        changes = apply_policy(cfg, policy, options)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    _say_once(f'--tempo {policy["policy"]} {describe(changes)}')


def _check_options(cfg: Config, options: dict[str, Any]) -> None:
    """A new top-level key does nothing, so it is a mistake; a deeper one may be meant."""
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
            close = difflib.get_close_matches(part, sorted(map(str, keys)), n=1)
            meant = f'; did you mean {".".join(path[:depth] + close)}?' if close else ''
            message = f'--cfg-options {option}: the config has no {".".join(path[: depth + 1])}'
            if depth == 0:
                raise LaunchError(message + meant)
            if close:
                _say(f'{message}, so it is added{meant}')
            break


def has_accelerator() -> bool:
    """Whether there is a device other than the CPU that mmengine would train on."""
    return get_device() != 'cpu'


def enable_amp(cfg: Config) -> None:
    """--amp: mixed precision with a dynamic loss scale."""
    cls = optim_wrapper_class(cfg)
    if cls in map(OPTIM_WRAPPERS.get, WITH_AMP.values()):
        _say('--amp: the config has mixed precision already')
        return
    amp = next((amp for name, amp in WITH_AMP.items() if cls is OPTIM_WRAPPERS.get(name)), None)
    if cls is None or amp is None:
        raise LaunchError(
            f'--amp works with optim_wrapper.type={" or ".join(WITH_AMP)}, found '
            f'{cfg.optim_wrapper.get("type")}; set its mixed precision in the config instead'
        )
    cfg.optim_wrapper.type = amp
    cfg.optim_wrapper.loss_scale = 'dynamic'


def enable_auto_scale_lr(cfg: Config) -> None:
    """--auto-scale-lr: the learning rate follows the number of samples an update."""
    scale = cfg.get('auto_scale_lr') or {}
    if 'base_batch_size' not in scale:
        raise LaunchError(
            '--auto-scale-lr: the config does not say for which batch its learning rate is; '
            'add it with --cfg-options auto_scale_lr.base_batch_size=N'
        )
    cfg.auto_scale_lr.enable = True
    batches = accumulation_of(cfg.get('optim_wrapper'))
    if batches > 1:
        # mmengine divides what the processes take at once by this, and knows of no accumulation.
        base = cfg.auto_scale_lr.base_batch_size
        cfg.auto_scale_lr.base_batch_size = base / batches
        _say(
            f'--auto-scale-lr: {batches} batches make an update, so auto_scale_lr.base_batch_size '
            f'is {base / batches:g} instead of {base:g}'
        )


def set_resume(cfg: Config, resume: str | None) -> None:
    """--resume: 'auto' takes the newest checkpoint of the work dir, anything else is a path."""
    if resume is None:
        return
    cfg.resume = True
    if resume != 'auto':
        cfg.load_from = resume
        return
    cfg.load_from = None
    newest, problems = newest_of(cfg)
    if problems and newest is not None:
        _say_once('\n'.join(f'--resume: not from this: {problem}' for problem in problems))
        _say_once(f'--resume: {newest} is whole, and the newest of those')
        cfg.load_from = newest


def enable_pictures(cfg: Config, show: bool, show_dir: str | None, wait_time: float) -> None:
    """--show and --show-dir: turn on the config's own visualization hook."""
    hook = (cfg.get('default_hooks') or {}).get('visualization')
    if hook is None:
        raise LaunchError(
            '--show and --show-dir need default_hooks.visualization in the config, for example '
            "dict(type='BEVVisualizationHook') or mmseg's dict(type='SegVisualizationHook')"
        )
    hook.draw = True
    if hook.type == 'BEVVisualizationHook':
        if show:
            raise LaunchError('--show has no window for BEV models; use --show-dir DIR')
        hook.out_dir = show_dir
        return
    if show:
        hook.show, hook.wait_time = True, wait_time
    if show_dir:
        cfg.visualizer.save_dir = show_dir


def enable_tta(cfg: Config) -> None:
    """--tta: wrap the model as the config's `tta_model` says."""
    if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
        raise LaunchError('--tta needs tta_model and tta_pipeline, which this config does not have')
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline
    cfg.tta_model.module = cfg.model
    cfg.model = cfg.tta_model


def keep_predictions(cfg: Config, folder: str) -> None:
    """--out: let mmseg's metric write its predictions."""
    evaluator = cfg.test_evaluator
    if not isinstance(evaluator, dict) or evaluator.get('type') not in (
        'IoUMetric',
        'CityscapesMetric',
    ):
        raise LaunchError(
            '--out works with a single IoUMetric or CityscapesMetric; use --show-dir for BEV models'
        )
    evaluator.update(output_dir=folder, keep_results=True)


def check_device(cfg: Config, training: bool) -> None:
    """Say at once what would fail without a GPU or a launcher, and why."""
    missing = [name for name in LAUNCHER_NEEDS.get(cfg.launcher, ()) if name not in os.environ]
    if missing:
        raise LaunchError(
            f'--launcher {cfg.launcher}: {", ".join(missing)} not set; start it with '
            'tools/dist_train.sh or tools/slurm_train.sh, or leave --launcher out'
        )
    if has_accelerator():
        return
    if training:
        _spare_emulation(cfg)
    gpu = (
        f'needs a GPU, and torch {torch.__version__} finds none (with a GPU in the machine, '
        'check `nvidia-smi` and install a CUDA build of torch)'
    )
    if cfg.launcher in ('slurm', 'mpi'):
        raise LaunchError(f'--launcher {cfg.launcher} {gpu}')
    if training and optim_wrapper_class(cfg) is AmpOptimWrapper:
        raise LaunchError(
            f'mixed precision with AmpOptimWrapper {gpu}; train.py --zero-wait, or --cfg-options '
            'optim_wrapper.type=SparseAmpOptimWrapper, computes in bfloat16 on a CPU'
        )


def _spare_emulation(cfg: Config) -> None:
    """A policy's half precision makes a CPU without it many times slower, not faster."""
    wrapper: Any = cfg.get('optim_wrapper') or {}
    if KEY not in cfg or wrapper.get('dtype') is not None or cpu_has_bfloat16() is not False:
        return
    if optim_wrapper_class(cfg) is OPTIM_WRAPPERS.get('SparseAmpOptimWrapper'):
        wrapper.type = 'SparseOptimWrapper'
        wrapper.pop('loss_scale', None)
        _say_once(
            'no GPU, and this CPU has no bfloat16 but would emulate it: optim_wrapper.type is '
            'SparseOptimWrapper, in float32 (optim_wrapper.dtype=bfloat16 insists)'
        )


def _sync_bn_as_bn(node: Any) -> None:
    """SyncBN works on GPUs only; everything else about the model stays."""
    if isinstance(node, dict):
        if node.get('type') == 'SyncBN':
            node['type'] = 'BN'
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for child in node:
            _sync_bn_as_bn(child)


def _join_over_gloo(cfg: Config) -> None:
    """Several processes without GPUs, which mmengine's own start cannot do.

    It sets a CUDA device before it joins, and names one when it wraps the model.
    """
    _say('no GPU found: processes talk over gloo, SyncBN is built as BN')
    torch.distributed.init_process_group('gloo')
    _sync_bn_as_bn(cfg._cfg_dict.model)
    cfg.model_wrapper_cfg = dict(
        type='MMDistributedDataParallel',
        device_ids=None,
        broadcast_buffers=False,
        find_unused_parameters=cfg.get('find_unused_parameters', False),
    ) | (cfg.get('model_wrapper_cfg') or {})


def lock_folders(cfg: Config) -> FolderLock:
    """Lock the folders that a training writes into, in the first of its processes.

    The Runner writes from its construction on: a folder for logs, the log, and the config.
    """
    rank = dict(pytorch='RANK', slurm='SLURM_PROCID', mpi='OMPI_COMM_WORLD_RANK').get(cfg.launcher)
    if rank is not None and os.environ.get(rank, '0') != '0':
        return FolderLock([])
    try:
        lock = FolderLock([cfg.work_dir, *out_dirs_of(cfg)])
    except FolderInUseError as error:
        raise LaunchError(str(error)) from error
    for problem in lock.problems:
        _say(problem)
    return lock


def build_runner(cfg: Config) -> Runner:
    """The stock Runner, or the one that `runner_type` names."""
    register_safe_downloads()  # a model may load its weights when it is built
    if cfg.launcher == 'pytorch' and not has_accelerator():
        _join_over_gloo(cfg)
    if 'runner_type' not in cfg:
        return Runner.from_cfg(cfg)
    return RUNNERS.build(cfg)
