"""Stops before a NaN or an infinity gets into the weights."""

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
"""Optimizers that carry whatever is not finite in a gradient into its parameter, where it stays
(tests/learner/test_glancing.py tries each of them)."""
_CHUNK = 64
"""So many flags are made at once, and kept: a view costs a microsecond."""


class NonFinite(Measured):
    """Stop before the update of the first step whose loss or gradients are not finite.

    The parameters are finite then, and the hit names the first module whose output was not. Under fp16
    only the loss is watched: there gradients overflow now and then, and the scaler leaves such steps out.

    With torch's common optimizers, whatever is not finite in a gradient stays in its parameter. So the
    parameters are asked once a block, ten times a second; only where they tell of something are the steps
    of that block taken again and each one's gradients looked at. Where all is finite then, a warning says so:
    what went wrong came from outside the training's state.

    Args:
        every_step: look at the gradients of each step as it is taken, which costs one more pass over them
            (2 % of a small model's step on a CPU). Needed where a step mends its own weights: an infinity
            that is clamped away in the same block leaves no trace.
        activations: watch the outputs of all modules as well, by hooks. An infinity may be there on purpose
            (a mask), and this is what finds one that never reaches the loss.
    """

    needs_whole = True

    def __init__(self, *, activations: bool = False, every_step: bool = False) -> None:
        self.activations = activations
        self.every_step = every_step
        self._pools: list[Tensor] = []
        self._flags: list[Tensor] = []
        """The pools' entries, each a view of its own."""
        self._one = torch.ones(1)
        self._next = 0
        self._uniform = False
        """Whether gradients are of one kind, as parameters tell: asked once, not at each step."""
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
        """Zero where all is finite. 7 us for a small model: one call for all gradients of a kind."""
        loss = moment.loss
        flags = [] if moment.scaled else [self._check(alike) for alike in self._alike(moment.gradients)]
        flags += self._outputs
        self._outputs = []
        if not flags:
            return loss * 0
        # Times zero: what is finite leaves nothing, what is not leaves NaN.
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
        # One norm for all: it reads them once. Squares may overflow where every value is finite.
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
        from ..inspection import trace_non_finite  # only a hit needs it

        culprit = trace_non_finite(batch, run, model)
        return "" if culprit is None else culprit.text

    def _alike(self, gradients: list[Tensor]) -> list[list[Tensor]]:
        return [gradients] if self._uniform and gradients else _by_kind(gradients)

    def _check(self, gradients: list[Tensor]) -> Tensor:
        if self._next == len(self._flags) or self._one.device != gradients[0].device:
            self._grow(gradients[0].device)
        flag = self._flags[self._next]
        self._next += 1
        # What torch's own GradScaler asks with. Multiplied by one, a gradient keeps its bits.
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
    """Whether a gradient that is not finite spoils its parameter for good."""
    optimizer = moment.optimizer
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks  # may mend things
    return (
        type(optimizer) in _KEEPING
        and not hooks
        and all(id(p) in moved for p in moment.parameters if p.requires_grad)
    )


def _near(flag: Tensor, loss: Tensor) -> Tensor:
    return flag if flag.device == loss.device else flag.to(loss.device, non_blocking=True)


def _by_kind(gradients: list[Tensor]) -> list[list[Tensor]]:
    """By device and type, as the check wants them. Of a sparse one its values, of a complex one its parts."""
    groups: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        dense = gradient.coalesce()._values() if gradient.is_sparse else gradient
        real = torch.view_as_real(dense) if dense.is_complex() else dense
        groups.setdefault((real.dtype, real.device), []).append(real)
    return list(groups.values())
