"""Changes how a model is computed, where no key of a config does."""

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

KEY = 'custom_hooks: ModelTuningHook'
PARTS = ('backbone', 'neck')  # what is called as a whole; heads of mmseg are not


@HOOKS.register_module()
class ModelTuningHook(Hook):
    """Memory format, TF32, activation checkpointing and compilation of a model that trains.

    All of it is done when a training begins, each with a line in the log. Names in a state dict
    stay the same, so stock reads the checkpoints, and checkpoints of runs without this hook go on
    with it and the other way round. It is taken back at the end of the run, but for the layout of
    the parameters and what is compiled. Other runs, as a test alone, are left as they are.

    Example::

        custom_hooks = [
            dict(type='ModelTuningHook', channels_last=True, activation_checkpointing='auto')]

    It logs no keys.

    Args:
        channels_last: Whether convolutions are computed with channels last, as tensor cores
            want it. Parameters, the optimizer's state, and what the backbone is given, or else
            the model, get that layout. Defaults to False.
        tf32: Whether matrix products and convolutions of float32 on CUDA may round what they
            multiply to TF32. Defaults to None: as torch has it, that is convolutions only.
        activation_checkpointing: Names of modules that keep their inputs alone and are computed
            again in the backward pass; lists of modules stand for their items. 'auto' takes all
            modules whose class knows `with_cp` (blocks of mmseg's Swin, ResNet, MiT, HRNet, ...);
            if there are none, the stages of the backbone (`stages`, `layers`, or `layer1` and so
            on); if there are none, its children. Defaults to None: none.
        compile: Modules to compile and how, as `dict(modules='auto', mode='default')`, with
            other arguments of `torch.compile` as `mode='reduce-overhead'` or 'max-autotune';
            'auto' are backbone and neck. Experimental: averages of batch norms move twice where
            a module is checkpointed as well. Where the compiler doesn't work here, the log says
            why, and the run does without. Defaults to None: nothing.
    """

    # Before hooks that look at the model or copy it when the training begins.
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
        """Raise, naming the config's key, where a part that it is to find is not there."""
        self._units(model)
        self._to_compile(model)

    def before_train(self, runner: Any) -> None:
        self.after_run(runner)  # of a training that has failed, begun again by hand
        model, say = unwrapped(runner.model), runner.logger.info
        # All names are looked up before anything is changed.
        units = self._units(model)
        to_compile = self._to_compile(model)
        if self.tf32 is not None:
            self._allow_tf32(self.tf32)
            say(f'ModelTuningHook.tf32={self.tf32}: of matrix products and convolutions on CUDA')
        if self.channels_last:
            name = 'backbone' if isinstance(getattr(model, 'backbone', None), nn.Module) else ''
            count, undo = take_channels_last(model, model.get_submodule(name))
            self._undo.append(undo)
            say(
                f'ModelTuningHook.channels_last: {count} parameters of {type(model).__name__}, '
                f'and what its {name or "forward"} is given'
            )
        turned = sum(map(match_state, optimizers_of(runner)))
        if turned:
            say(f'ModelTuningHook: {turned} tensors of optimizers got the layout of parameters')
        if units is not None:
            tell = say if units else runner.logger.warning
            tell(f'ModelTuningHook.activation_checkpointing: {_listed(units)}')
            for unit in dict.fromkeys(units.values()):
                self._undo.append(checkpoint_module(unit))
        if to_compile is not None:
            self._compile(runner, to_compile)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict) -> None:
        # A model is loaded in whatever layout it has, the state of its optimizer in that of the
        # file, which fused optimizers take for that of the parameters.
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
            if torch.get_float32_matmul_precision() != precision:  # 'medium' allows it too
                torch.set_float32_matmul_precision(precision)

        self._undo.append(undo)
        matmul.allow_tf32 = cudnn.allow_tf32 = allow

    def _compile(self, runner: Any, modules: dict[str, nn.Module]) -> None:
        options = {key: value for key, value in (self.compile or {}).items() if key != 'modules'}
        reason = why_not_compiled(next(runner.model.parameters()).device, options)
        if reason is not None:
            runner.logger.warning(f'ModelTuningHook.compile: trains without; {reason}')
            return
        runner.logger.info(f'ModelTuningHook.compile, {options}: {_listed(modules)}')
        for module in modules.values():
            module.compile(**options)


def _listed(modules: dict[str, nn.Module]) -> str:
    """How many of which class; there may be none."""
    kinds = Counter(type(module).__name__ for module in modules.values())
    counts = ', '.join(f'{count} {kind}' for kind, count in kinds.items())
    return f'{len(modules)} modules ({counts})' if modules else "'auto' has found no modules"
