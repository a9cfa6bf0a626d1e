"""Stops the training before a NaN or an infinity gets into the weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from ..event.values import Floats
from .base import Found, Measured, Moment, Run

_KEEPING = frozenset(
    {
        optim.SGD,
        optim.Adam,
        optim.AdamW,
        optim.NAdam,
        optim.RAdam,
        optim.Adamax,
        optim.Adagrad,
        optim.Adadelta,
        optim.RMSprop,
    }
)
"""Optimizers that carry a gradient's non-finite values into its parameter, where they stay
(tests/learner/test_glancing.py tries each of them)."""
_CHUNK = 64
"""This many flags are made at once, and kept: a view costs a microsecond."""


class NonFinite(Measured):
    """Stop before the update of the first step whose loss or gradients are not finite.

    At that point the parameters are finite, and the hit names the first module whose output was not. Under
    fp16 only the loss is watched: gradients overflow there now and then, and the scaler skips such steps.

    With torch's common optimizers, a non-finite value in a gradient stays in its parameter. So the parameters
    are checked once for each block, ten times a second. If they show something, the steps of that block are
    taken again, and each step's gradients are checked. If all of them are finite then, a warning says so: the
    cause came from outside the training's state.

    Args:
        every_step: check the gradients of each step as it is taken. This costs one more pass over them (2 %
            of a small model's step on a CPU). It is needed if a step repairs its own weights: an infinity
            that is clamped away in the same block leaves no trace.
        activations: also watch the outputs of all modules, by hooks. This finds an infinity that never
            reaches the loss. It also stops at one that is there on purpose (a mask).
    """

    needs_whole = True

    def __init__(self, *, activations: bool = False, every_step: bool = False) -> None:
        self.activations = activations
        self.every_step = every_step
        self._pools: list[Tensor] = []
        self._flags: list[Tensor] = []
        """The pools' entries, each one a view."""
        self._one = torch.ones(1)
        self._next = 0
        self._uniform = False
        """Whether all gradients are of one kind. The parameters show it; it is read once, not at each
        step."""
        self._hooks: list[Any] = []
        self._outputs: list[Tensor] = []

    def attach(self, model: nn.Module) -> None:
        self._next = 0
        parameters = list(model.parameters())
        self._uniform = len({(p.dtype, p.device) for p in parameters}) == 1 and not (
            parameters[0].is_complex() or any(getattr(module, "sparse", False) for module in model.modules())
        )
        if self.activations:
            leaves = [module for module in model.modules() if not any(module.children())]
            self._hooks = [module.register_forward_hook(self._saw) for module in leaves]

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._outputs = [], []

    def measure(self, moment: Moment) -> Tensor:
        """Return zero if all is finite. 7 us for a small model: one call for all gradients of a kind."""
        loss = moment.loss
        flags = [] if moment.scaled else [self._check(alike) for alike in self._alike(moment.gradients)]
        flags += self._outputs
        self._outputs = []
        if not flags:
            return loss * 0
        # Times zero: a finite value gives zero, any other gives NaN.
        wrong = torch.add(_near(flags[0], loss), loss, alpha=0)
        for flag in flags[1:]:
            wrong = wrong + _near(flag, loss)
        return wrong

    def lasts(self, moment: Moment) -> bool:
        asked = self.every_step or self.activations
        return not (asked or moment.scaled or moment.clipped) and _keeps(moment)

    def glance(self, moment: Moment) -> Tensor:
        return moment.loss

    def traces(self, moment: Moment, open_window: bool) -> bool:
        tensors = [p.detach() for p in moment.parameters if p.requires_grad]
        if open_window:
            tensors += moment.gradients
        # One norm for all: it reads them once. The squares may overflow although every value is finite.
        norms = [nn.utils.get_total_norm(alike) for alike in _by_kind(tensors)]
        if all(bool(norm.isfinite()) for norm in norms):
            return False
        return any(each.layout != torch.strided or not bool(each.isfinite().all()) for each in tensors)

    def says(self, value: float) -> str:
        return "" if value == 0 else "loss or gradients are not finite"

    def judge(self, iterations: Sequence[int], values: Floats) -> Found | None:
        for pool in self._pools[: -(-self._next // _CHUNK)]:
            pool.zero_()
        self._next = 0
        wrong = np.flatnonzero(values)
        return Found(int(wrong[0]), self.says(float(values[wrong[0]]))) if len(wrong) else None

    def blame(self, model: nn.Module) -> str:
        names = [name for name, p in model.named_parameters() if not bool(p.detach().isfinite().all())]
        if not names:
            return ""
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"the update of this step makes {names[0]}{more} non-finite"

    def explain(self, batch: Any, run: Run, model: nn.Module) -> str:
        from ..inspection import trace_non_finite  # loaded at a hit only

        culprit = trace_non_finite(batch, run, model)
        return "" if culprit is None else culprit.text

    def _alike(self, gradients: list[Tensor]) -> list[list[Tensor]]:
        return [gradients] if self._uniform and gradients else _by_kind(gradients)

    def _check(self, gradients: list[Tensor]) -> Tensor:
        if self._next == len(self._flags) or self._one.device != gradients[0].device:
            self._grow(gradients[0].device)
        flag = self._flags[self._next]
        self._next += 1
        # The kernel of torch's own GradScaler. Multiplied by one, a gradient keeps its bits.
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, flag, self._one)
        return flag

    def _grow(self, device: torch.device) -> None:
        if self._one.device != device:  # the model was moved, or this is the first time
            self._pools, self._flags, self._next = [], [], 0
            self._one = torch.ones(1, device=device)
        self._pools.append(torch.zeros(_CHUNK, device=device))
        self._flags += self._pools[-1].split(1)  # type: ignore[no-untyped-call]

    def _saw(self, module: nn.Module, given: Any, output: Any) -> None:
        if module.training and isinstance(output, Tensor) and output.is_floating_point():
            self._outputs.append((output.detach() * 0).sum())  # NaN unless all is finite

    def __repr__(self) -> str:
        asked = [name for name in ("activations", "every_step") if getattr(self, name)]
        return f"NonFinite({', '.join(f'{name}=True' for name in asked)})"


def _keeps(moment: Moment) -> bool:
    """Whether a non-finite gradient damages its parameter permanently."""
    optimizer = moment.optimizer
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks  # may repair values
    return (
        type(optimizer) in _KEEPING
        and not hooks
        and all(id(p) in moved for p in moment.parameters if p.requires_grad)
    )


def _near(flag: Tensor, loss: Tensor) -> Tensor:
    return flag if flag.device == loss.device else flag.to(loss.device, non_blocking=True)


def _by_kind(gradients: list[Tensor]) -> list[list[Tensor]]:
    """Group by device and type, as the check needs it: a sparse gradient's values, a complex one's parts."""
    groups: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        dense = gradient.coalesce()._values() if gradient.is_sparse else gradient
        real = torch.view_as_real(dense) if dense.is_complex() else dense
        groups.setdefault((real.dtype, real.device), []).append(real)
    return list(groups.values())
