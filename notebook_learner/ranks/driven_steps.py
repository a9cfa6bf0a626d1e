"""Steps of the user's that run backward and the optimizers themselves, on several ranks.

As each backward pass ends, the gradients that it has made become the mean over all samples of the batch, as
with torch's DistributedDataParallel. So what comes after it (clipping, a look at the norm, the optimizer)
sees what one device would see. All ranks have to do the same: they agree on that at each backward pass, and
at the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable

from ..errors import StepError

Sum = Callable[[Tensor], None]
"""Makes a tensor the sum of all ranks' values."""

DIFFER = (
    "train_step calls optimizer.step() itself, and did not do the same on all devices: each has to run "
    "backward and its optimizers equally often and in the same order. Where that depends on a value (a loss, "
    "a random number), decide by one that all devices share, such as learner.position"
)
OTHERS = (
    "train_step calls optimizer.step() itself, and on some devices these were not the learner's optimizers: "
    "each process that imports their module makes its own. Take them from learner.optimizer in the step, or "
    "define the step in the notebook"
)
SPARSE = (
    "a sparse gradient cannot be summed over several devices; build the embedding with sparse=False, or "
    "train on one device"
)
_GRAPH = (
    "backward(create_graph=True) left gradients that have a graph themselves, which cannot be averaged over "
    "several devices; use torch.autograd.grad(..., create_graph=True), or train on one device"
)


def _hooked(parameter: nn.Parameter, function: Callable[[Tensor], None]) -> Any:
    """A hook that also hears of a parameter that does not train now: the step may let it train for a while,
    as loops of GANs do."""
    hooked: Any = parameter
    trains = parameter.requires_grad
    try:
        return hooked.requires_grad_(True).register_post_accumulate_grad_hook(function)
    finally:
        parameter.requires_grad_(trains)


class DrivenSteps:
    """Averages gradients over ranks as the user's backward passes end.

    Args:
        total: makes a tensor the sum of all ranks' values.
        world: the number of ranks.
    """

    def __init__(self, total: Sum, world: int) -> None:
        self.attends = False
        """Whether a step runs that may drive itself."""
        self._total, self._world = total, world
        self._parameters: list[nn.Parameter] = []
        self._hooks: list[Any] = []
        self._made: set[int] = set()
        """The places of the parameters that have got a gradient in the backward pass that runs."""
        self._weight = 0.0
        self._own: dict[int, Tensor] | None = None

    def attend(self, parameters: Sequence[nn.Parameter], weight: float, *, keeps: bool) -> None:
        """Average the gradients of each backward pass from here on.

        Args:
            parameters: those of the model, in the same order on all ranks.
            weight: the number of samples behind this rank's gradients.
            keeps: whether this rank's own gradients may be wanted back.
        """
        self._listen_to(parameters)
        self.attends, self._weight = True, weight
        self._own = {} if keeps else None
        self._made.clear()

    def rest(self, *, own: bool = False) -> None:
        """Leave later backward passes alone.

        Args:
            own: put this rank's own gradients back, as another sum follows, and listen to no parameter: a
                hook costs 1 us at each.
        """
        self.attends, kept, self._own = False, self._own, None
        for place, gradient in (kept or {}).items() if own else ():
            self._parameters[place].grad = gradient
        if own:
            self.forget()

    def forget(self) -> None:
        """Listen to no parameter."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._parameters, self.attends = [], [], False

    @property
    def runs(self) -> bool:
        """Whether a backward pass runs, whose gradients are not averaged yet."""
        return bool(self._made)

    def agree(self, calls: int) -> None:
        """At a step's end: all ranks are there, and have called the optimizers alike.

        Args:
            calls: a number for the calls, in their order.

        Raises:
            StepError: they did not do the same.
        """
        *_, backward, together = self._agreed([], backward=False, calls=calls)
        if backward or together != calls * self._world:
            others = not backward and (not calls or together == calls)
            raise StepError(OTHERS if others else DIFFER)

    def mean(self, value: Any) -> Any:
        """The mean of a loss over all samples of the batch, for an optimizer that decides by it."""
        if not isinstance(value, Tensor):
            return value
        pair = torch.stack([value.detach().double() * self._weight, self._filled(self._weight)])
        self._total(pair)
        return (pair[0] / pair[1]).to(value.dtype)

    # As a backward pass goes on --------------------------------------------------------------------------

    def _listen_to(self, parameters: Sequence[nn.Parameter]) -> None:
        if [*map(id, parameters)] == [*map(id, self._parameters)]:
            return
        self.forget()
        self._parameters = [*parameters]
        for place, parameter in enumerate(self._parameters):
            if parameter.is_floating_point() or parameter.is_complex():
                self._hooks.append(_hooked(parameter, self._noting(place)))

    def _noting(self, place: int) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            if not self.attends:
                return
            if not self._made:
                engine: Any = Variable._execution_engine
                engine.queue_callback(self._over)
            self._made.add(place)

        return note

    def _over(self) -> None:
        """A backward pass is over: average what it has made, on any rank."""
        made = sorted(self._made)
        self._made.clear()
        if self._own and self._own.keys() & made:
            self._own = None  # of a second backward pass, the rank's own gradients are not known
        *there, weight, backward, _ = self._agreed(made, backward=True)
        if backward != self._world:
            raise StepError(DIFFER)
        with torch.no_grad():
            self._average([place for place, ranks in enumerate(there) if ranks], weight)

    def _agreed(self, made: list[int], *, backward: bool, calls: int = 0) -> list[float]:
        """All ranks' sums: for each parameter, how many have a new gradient of it; then the samples, how many
        are at the end of a backward pass, and the numbers for their calls."""
        told = [0.0] * len(self._parameters)
        for place in made:
            told[place] = 1.0
        sums = torch.tensor([*told, self._weight, float(backward), float(calls)], dtype=torch.float64)
        sums = sums.to(self._parameters[0].device)
        self._total(sums)
        found: list[float] = sums.tolist()
        return found

    def _average(self, places: list[int], weight: float) -> None:
        alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place in places:
            parameter = self._parameters[place]
            alike.setdefault((parameter.device, parameter.dtype), []).append(place)
        for group in alike.values():
            parts = [self._weighed(place) for place in group]
            flat = torch.cat([part.reshape(-1) for part in parts])
            self._total(flat)
            flat.div_(weight)
            for place, part in zip(group, torch.split(flat, [part.numel() for part in parts]), strict=True):
                self._take(place, part)

    def _weighed(self, place: int) -> Tensor:
        """This rank's part of a sum; a rank without samples adds nothing, whatever its gradient is."""
        parameter = self._parameters[place]
        grad = parameter.grad
        if grad is not None and (grad.requires_grad or grad.layout is not torch.strided):
            raise StepError(_GRAPH if grad.requires_grad else SPARSE)
        if self._own is not None and grad is not None:
            self._own.setdefault(place, grad.detach().clone())
        if grad is None or not self._weight:
            return torch.zeros_like(parameter)
        return grad * self._weight

    def _take(self, place: int, mean: Tensor) -> None:
        parameter = self._parameters[place]
        if parameter.grad is None:
            parameter.grad = mean.view(parameter.shape).clone()
        else:
            parameter.grad.copy_(mean.view(parameter.shape))

    def _filled(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self._parameters[0].device)
