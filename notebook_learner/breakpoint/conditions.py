"""The conditions that the package brings: each stops the training at a value, a number or a fault."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, sqrt
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn, optim

from ..event.values import Column, Floats, Split
from .base import Found, FromMetrics, Measured, Moment, Planned, Run, Stage

_RECTIFIERS = (nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardtanh, nn.Hardswish)


class DeadUnits(Measured):
    """Stop when more than a share of a layer's units are zero for every sample of a batch.

    It watches activation modules (ReLU and similar ones) through hooks. It does not see activations that are
    written as functions (`F.relu`), or those of a compiled model.

    Args:
        share: the share of a layer's units, between 0 and 1.
    """

    def __init__(self, share: float = 0.5) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"DeadUnits({share!r}): give a share between 0 and 1, such as 0.5")
        self.share = share
        self._hooks: list[Any] = []
        self._shares: list[Tensor] = []

    def attach(self, model: nn.Module) -> None:
        self._hooks = [
            module.register_forward_hook(self._saw)
            for module in model.modules()
            if isinstance(module, _RECTIFIERS)
        ]

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._shares = [], []

    def measure(self, moment: Moment) -> Tensor | None:
        shares, self._shares = self._shares, []
        return torch.stack(shares).max() if shares else None

    def says(self, value: float) -> str:
        return f"{value:.0%} of a layer's units are zero for the whole batch" if value > self.share else ""

    def explain(self, batch: Any, run: Any, model: nn.Module) -> str:
        worst: list[tuple[float, str]] = []

        def saw(name: str) -> Any:
            return lambda module, given, output: worst.append((float(_dead_share(output)), name))

        hooks = [
            module.register_forward_hook(saw(name))
            for name, module in model.named_modules()
            if isinstance(module, _RECTIFIERS)
        ]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
        return f"in {max(worst)[1]}" if worst else ""

    def _saw(self, module: nn.Module, given: Any, output: Any) -> None:
        if module.training and isinstance(output, Tensor) and output.ndim > 1:
            self._shares.append(_dead_share(output.detach()))

    def __repr__(self) -> str:
        return f"DeadUnits({self.share:g})"


def _dead_share(output: Tensor) -> Tensor:
    """The share of units that are zero for all samples. Units are channels. In (N, T, C), the shape that
    transformers have, the channels come last."""
    units = output.ndim - 1 if output.ndim == 3 else 1
    alive = output.movedim(units, 0).flatten(1).ne(0).any(dim=1)
    return 1 - alive.float().mean()


class GradNorm(Measured):
    """Stop before an update if the norm of all gradients together, before clipping, is above a bound."""

    needs_whole = True
    stage: ClassVar[Stage] = "update"

    def __init__(self, above: float) -> None:
        if not above > 0:
            raise ValueError(f"GradNorm(above={above!r}): give a number above 0")
        self.above = above

    def measure(self, moment: Moment) -> Tensor | None:
        # Torch cannot compute the norm of a sparse gradient, which an embedding may have.
        gradients = [g.coalesce().values() if g.is_sparse else g for g in moment.gradients]
        return nn.utils.get_total_norm(gradients) if gradients else None

    def says(self, value: float) -> str:
        return f"gradient norm {value:.4g} is above {self.above:g}" if value > self.above else ""

    def __repr__(self) -> str:
        return f"GradNorm(above={self.above:g})"


class LossSpike(Measured):
    """Stop at a step whose loss is far above the losses of the last steps.

    Args:
        z: how many standard deviations above the mean of the last steps.
        ratio: or how many times their mean. It needs losses that are not negative: with a mean below zero it
            never stops, because a multiple of such a mean is a better loss.
        window: how many steps count as the last ones.
        warmup: the number of steps to see before it judges.
    """

    def __init__(
        self, z: float | None = None, *, ratio: float | None = None, window: int = 100, warmup: int = 20
    ) -> None:
        if z is not None and ratio is not None:
            raise ValueError("LossSpike(z, ratio=...): choose one of them")
        self.z = 6.0 if z is None and ratio is None else z
        self.ratio = ratio
        for name, number in (("z", self.z), ("ratio", ratio)):
            if number is not None and not number > 0:
                raise ValueError(f"LossSpike({name}={number!r}): give a number above 0")
        if not 2 <= warmup <= window:
            raise ValueError(f"LossSpike(window={window}, warmup={warmup}): 2 <= warmup <= window")
        self.window, self.warmup = window, warmup
        self._seen: deque[tuple[int, float]] = deque()
        self._sums = (0.0, 0.0)
        """The sums of the values seen and of their squares. `_shift` is subtracted from each value first, so
        that the difference of large numbers stays exact enough."""
        self._shift = 0.0
        self._added = 0

    def measure(self, moment: Moment) -> Tensor:
        return moment.loss

    def judge(self, iterations: Sequence[int], values: Floats) -> Found | None:
        for index, (iteration, value) in enumerate(zip(iterations, values.tolist(), strict=True)):
            if text := self._stands_out(value):
                return Found(index, text)
            if isfinite(value):
                self._add(iteration, value)
        return None

    def forget_after(self, iteration: int) -> None:
        before = len(self._seen)
        while self._seen and self._seen[-1][0] > iteration:
            self._seen.pop()
        if len(self._seen) != before:
            self._sum_up()

    def _add(self, iteration: int, value: float) -> None:
        self._seen.append((iteration, value))
        self._added += 1
        if self._added % self.window == 1:  # now and then, so that rounding errors do not add up
            self._sum_up()
            return
        gone = self._seen.popleft()[1] - self._shift if len(self._seen) > self.window else 0.0
        come = value - self._shift
        self._sums = (self._sums[0] + come - gone, self._sums[1] + come * come - gone * gone)

    def _sum_up(self) -> None:
        while len(self._seen) > self.window:
            self._seen.popleft()
        values = [value for _, value in self._seen]
        self._shift = values[0] if values else 0.0
        apart = [value - self._shift for value in values]
        self._sums = (sum(apart), sum(each * each for each in apart))

    def _stands_out(self, value: float) -> str:
        count = len(self._seen)
        if count < self.warmup or not isfinite(value):  # NonFinite stops at those
            return ""
        total, squares = self._sums
        mean = self._shift + total / count
        if self.ratio is not None:
            if mean < 0 or value <= self.ratio * mean:
                return ""
            times = f"{value / mean:.3g}" if mean else "infinitely many"
            return f"loss {value:.4g} is {times} times the mean of the last {count}"
        spread = sqrt(max(0.0, (squares - total * total / count) / (count - 1)))
        assert self.z is not None
        if value <= mean + self.z * spread or value == mean:
            return ""
        far = (value - mean) / spread if spread else float("inf")
        return f"loss {value:.4g} lies {far:.3g} deviations above the mean of the last {count}, {mean:.4g}"

    def __repr__(self) -> str:
        return f"LossSpike(z={self.z:g})" if self.ratio is None else f"LossSpike(ratio={self.ratio:g})"


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}


class MetricIs(FromMetrics):
    """Stop when the value of a metric at one step meets a comparison: `MetricIs("Accuracy", "<", 10)`.

    In training it stops before the update of that step, in validation after the step.

    Args:
        name: the name of a registered or logged metric.
        op: one of > >= < <= == !=.
        value: the number to compare with.
        split: "train" or "valid".
    """

    def __init__(self, name: str, op: str, value: float, *, split: Split = "train") -> None:
        if op not in _OPERATORS:
            raise ValueError(
                f"MetricIs({name!r}, {op!r}, ...): the comparison is one of {' '.join(_OPERATORS)}"
            )
        if split not in ("train", "valid"):
            raise ValueError(f'MetricIs(..., split={split!r}): the split is "train" or "valid"')
        self.name, self.op, self.value, self.split = name, op, value, split

    def judge(self, split: Split, columns: Mapping[str, Column]) -> Found | None:
        column = columns.get(self.name)
        if split != self.split or column is None:
            return None
        hits = np.asarray(_OPERATORS[self.op](column.values, self.value))
        if column.weights is not None:
            hits = hits & (column.weights != 0)  # no value at that step
        if not hits.any():
            return None
        index = int(hits.argmax())
        return Found(index, f"{self.split} {self.name} {column.values[index]:.6g} {self.op} {self.value:g}")

    def __repr__(self) -> str:
        where = "" if self.split == "train" else f", split={self.split!r}"
        return f"MetricIs({self.name!r}, {self.op!r}, {self.value:g}{where})"


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
        loss = _loss_or_zero(moment)
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
        return _loss_or_zero(moment)

    def traces(self, moment: Moment, open_window: bool) -> bool:
        tensors = _looked_at(moment, open_window)
        # One norm for all: it reads them once. The squares may overflow although every value is finite.
        norms = [nn.utils.get_total_norm(alike) for alike in _by_kind(tensors)]
        if all(bool(norm.isfinite()) for norm in norms):
            return False
        return any(each.layout != torch.strided or not bool(each.isfinite().all()) for each in tensors)

    def _trace(self, moment: Moment, open_window: bool) -> Tensor | None:
        kinds = _by_kind(_looked_at(moment, open_window))
        norms = [nn.utils.get_total_norm(alike).float() for alike in kinds]
        return sum((_near(each, norms[0]) for each in norms[1:]), norms[0]) if norms else None

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
    return (
        type(optimizer) in _KEEPING
        and not moment.repaired
        and all(id(p) in moved for p in moment.parameters if p.requires_grad)
    )


def _looked_at(moment: Moment, open_window: bool) -> list[Tensor]:
    tensors = [p.detach() for p in moment.parameters if p.requires_grad]
    return [*tensors, *moment.gradients] if open_window else tensors


def _loss_or_zero(moment: Moment) -> Tensor:
    return moment.loss if moment.has_loss else next(iter(moment.parameters)).new_zeros(())


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


class AtStep(Planned):
    """Stop at one training step, before its update.

    >>> AtStep(1234), AtStep(117, epoch=3)
    (AtStep(1234), AtStep(117, epoch=3))

    Args:
        step: the step's number, from 1: in the whole run, or in `epoch`.
        epoch: the epoch in which `step` counts; without it, `step` counts from the start of the run.
    """

    def __init__(self, step: int, *, epoch: int | None = None) -> None:
        for name, number in (("step", step), ("epoch", 1 if epoch is None else epoch)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ValueError(f"AtStep({name}={number!r}): steps and epochs are counted from 1")
        self.step, self.epoch = step, epoch

    def left(self, epoch: int, step: int, iteration: int) -> int | None:
        if self.epoch is not None:
            return self.step - 1 - step if epoch == self.epoch and step < self.step else None
        return self.step - 1 - iteration if iteration < self.step else None

    def __repr__(self) -> str:
        return f"AtStep({self.step})" if self.epoch is None else f"AtStep({self.step}, epoch={self.epoch})"


class EveryNSteps(Planned):
    """Stop at every n-th training step of the run, before its update."""

    def __init__(self, n: int) -> None:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"EveryNSteps({n!r}): give a number of steps, from 1")
        self.n = n

    def left(self, epoch: int, step: int, iteration: int) -> int | None:
        return self.n - 1 - iteration % self.n

    def __repr__(self) -> str:
        return f"EveryNSteps({self.n})"


class UpdateRatio(Measured):
    """Stop before an update that changes a weight by too large, or too small, a share of its norm.

    About 1e-3 is healthy; 1e-1 destroys what was learned, 1e-7 learns nothing. It looks at weights, which
    have two dimensions or more. It leaves out biases and scales: they begin at 0 or 1, and may change by any
    share. It copies the weights at every step, which costs memory and time.

    Args:
        above: stop if the largest share of all parameters is above this.
        below: stop if the largest share of all parameters is below this.
    """

    needs_whole = True
    stage: ClassVar[Stage] = "after"

    def __init__(self, above: float | None = None, *, below: float | None = None) -> None:
        if above is None and below is None:
            raise ValueError("UpdateRatio(): give above=..., below=..., or both")
        self.above, self.below = above, below
        self._before: list[tuple[Tensor, Tensor]] = []

    def attach(self, model: nn.Module) -> None:
        self._before = []

    def detach(self) -> None:
        self._before = []

    def prepare(self, moment: Moment) -> None:
        # If the step itself calls optimizer.step(), gradients of later calls are not there yet.
        trained = [
            p for p in moment.parameters if p.requires_grad and (moment.repaired or p.grad is not None)
        ]
        self._before = [(p.detach(), p.detach().clone()) for p in _dense(trained)]

    def measure(self, moment: Moment) -> Tensor | None:
        if not self._before:
            return None  # the accumulation window goes on
        now, before = map(list, zip(*self._before, strict=True))
        self._before = []
        moved = torch._foreach_sub(now, before)
        moves, norms = (
            torch.stack([norm.float() for norm in torch._foreach_norm(each)]) for each in (moved, before)
        )
        # A weight that begins at zero (a LoRA's second matrix) changes by an infinite share, and that is
        # right.
        return torch.where(norms > 0, moves / norms, torch.zeros_like(norms)).max()

    def says(self, value: float) -> str:
        if self.above is not None and not value <= self.above:
            return f"the largest update is {value:.3g} of its parameter, above {self.above:g}"
        if self.below is not None and value < self.below:
            return f"the largest update is {value:.3g} of its parameter, below {self.below:g}"
        return ""

    def __repr__(self) -> str:
        bounds = [f"{name}={value:g}" for name, value in self._bounds() if value is not None]
        return f"UpdateRatio({', '.join(bounds)})"

    def _bounds(self) -> Sequence[tuple[str, float | None]]:
        return ("above", self.above), ("below", self.below)


def _dense(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """The weights among them, or all; none with a sparse gradient."""
    moved = [p for p in parameters if p.grad is None or not p.grad.is_sparse]
    return [p for p in moved if p.ndim > 1] or moved
