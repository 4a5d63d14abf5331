"""Tune how a model is computed: memory format, TF32, checkpointing, compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch import nn

from mmtempo.models.activation_checkpointing import checkpoint_module, find_units
from mmtempo.models.channels_last import in_usual_layout, match_state, take_channels_last
from mmtempo.models.compile_check import check_compile, why_not_compiled
from mmtempo.utils.modules import find_modules
from mmtempo.utils.runner import optimizers_of, unwrapped
from mmtempo.utils.units import counted

KEY = 'custom_hooks: ModelTuningHook'
PARTS = ('backbone', 'neck')  # called as a whole, unlike the heads of mmseg


@HOOKS.register_module()
class ModelTuningHook(Hook):
    """Memory format, TF32, activation checkpointing and compilation of a model that trains.

    Everything is applied when a training begins, each with a line in the log. The names in a
    state dict stay the same, so that stock parts read the checkpoints, and a run may be resumed
    with or without this hook. It is undone at the end of the run, except for the layout of the
    parameters and compiled modules. Runs without training are left unchanged.

    Example::

        custom_hooks = [
            dict(type='ModelTuningHook', channels_last=True, activation_checkpointing='auto')]

    It logs no keys.

    Args:
        channels_last: Whether convolutions are computed with channels last, the layout that
            tensor cores prefer. Parameters, the state of the optimizer, and the inputs of the
            backbone (of the model if it has none) get that layout. Defaults to False.
        tf32: Whether float32 matrix products and convolutions on CUDA may round their operands to
            TF32. Defaults to None: as torch is set, by default for convolutions only.
        activation_checkpointing: Names of modules that keep their inputs only and are computed
            again in the backward pass; a name of a list of modules stands for its items. 'auto'
            takes all modules whose class knows `with_cp` (blocks of mmseg's Swin, ResNet, MiT,
            HRNet, ...); if there are none, the stages of the backbone (`stages`, `layers`, or
            `layer1` and so on); if there are none, its children. Defaults to None: none.
        compile: Modules to compile and arguments of `torch.compile`, as
            `dict(modules='auto', mode='default')`; 'auto' takes backbone and neck, and the mode
            may be 'reduce-overhead' or 'max-autotune'. Experimental: batch norm averages move
            twice in a module that is checkpointed as well. If the compiler does not work on this
            machine, the log says why and the run continues without. Defaults to None: nothing.
    """

    # Before hooks that read or copy the model when the training begins, as EMAHook.
    priority = 'HIGH'

    def __init__(
        self,
        channels_last: bool = False,
        tf32: bool | None = None,
        activation_checkpointing: str | Sequence[str] | None = None,
        compile: dict | None = None,
    ) -> None:
        check_compile(compile, f'{KEY}.compile')
        self.channels_last, self.tf32 = channels_last, tf32
        self.activation_checkpointing, self.compile = activation_checkpointing, compile
        self._undo: list[Callable[[], None]] = []

    def check_model(self, model: nn.Module) -> None:
        """Raise an error that names the config key if the model lacks a named module."""
        self._units(model)
        self._to_compile(model)

    def before_train(self, runner: Any) -> None:
        self.after_run(runner)  # a failed training that is started again has not called it
        model, info = unwrapped(runner.model), runner.logger.info
        # Look up all names before anything is changed, so that an error leaves the model as it is.
        units = self._units(model)
        to_compile = self._to_compile(model)
        if self.tf32 is not None:
            self._allow_tf32(self.tf32)
            info(f'ModelTuningHook.tf32={self.tf32}: for matrix products and convolutions on CUDA')
        if self.channels_last:
            name = 'backbone' if isinstance(getattr(model, 'backbone', None), nn.Module) else ''
            count, undo = take_channels_last(model, model.get_submodule(name))
            self._undo.append(undo)
            info(
                f'ModelTuningHook.channels_last: {count} parameters of {type(model).__name__}, '
                f'and the inputs of its {name or "forward"}'
            )
        turned = sum(map(match_state, optimizers_of(runner)))
        if turned:
            info(f'ModelTuningHook: {turned} optimizer tensors got the layout of their parameters')
        if units is not None:
            log = info if units else runner.logger.warning
            log(f'ModelTuningHook.activation_checkpointing: {_listed(units)}')
            for unit in dict.fromkeys(units.values()):
                self._undo.append(checkpoint_module(unit))
        if to_compile is not None:
            self._compile(runner, to_compile)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        # Loading keeps the layout of the model but takes that of the file for the optimizer
        # state, and fused optimizers assume that it equals the layout of the parameters.
        if self.channels_last and 'optimizer' in checkpoint:
            checkpoint['optimizer'] = in_usual_layout(checkpoint['optimizer'])

    def after_run(self, runner: Any) -> None:
        while self._undo:
            self._undo.pop()()

    def _units(self, model: nn.Module) -> dict[str, nn.Module] | None:
        names = self.activation_checkpointing
        if names is None or names == 'auto':
            return None if names is None else find_units(model)
        return find_modules(model, names, f'{KEY}.activation_checkpointing')

    def _to_compile(self, model: nn.Module) -> dict[str, nn.Module] | None:
        if self.compile is None:
            return None
        names = self.compile.get('modules', 'auto')
        if names == 'auto':
            names = [name for name in PARTS if isinstance(getattr(model, name, None), nn.Module)]
        return find_modules(model, names, f'{KEY}.compile.modules')

    def _allow_tf32(self, allow: bool) -> None:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        before = matmul.allow_tf32, cudnn.allow_tf32
        precision = torch.get_float32_matmul_precision()

        def undo() -> None:
            matmul.allow_tf32, cudnn.allow_tf32 = before
            # 'medium' allows TF32 as well, so the flag alone does not restore the precision.
            if torch.get_float32_matmul_precision() != precision:
                torch.set_float32_matmul_precision(precision)

        self._undo.append(undo)
        matmul.allow_tf32 = cudnn.allow_tf32 = allow

    def _compile(self, runner: Any, modules: dict[str, nn.Module]) -> None:
        options = {key: value for key, value in (self.compile or {}).items() if key != 'modules'}
        reason = why_not_compiled(next(runner.model.parameters()).device, options)
        if reason is not None:
            runner.logger.warning(f'ModelTuningHook.compile: not compiled, {reason}')
            return
        runner.logger.info(f'ModelTuningHook.compile: {_listed(modules)}, with {options}')
        for module in modules.values():
            module.compile(**options)


def _listed(modules: dict[str, nn.Module]) -> str:
    """Return the number of modules of each class as text."""
    kinds = Counter(type(module).__name__ for module in modules.values())
    counts = ', '.join(f'{count} {kind}' for kind, count in kinds.items())
    if not modules:
        return "'auto' found no modules; name them"
    return f'{counted(len(modules), "module")} ({counts})'
