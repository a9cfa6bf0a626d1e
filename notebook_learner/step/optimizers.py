"""Several optimizers, seen as one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .optimizer_calls import clear, step


class Optimizers(Optimizer):
    """Optimizers by name, with the groups of all of them. Its step is a step of each, in their order.

    >>> import torch
    >>> first, second = (torch.optim.SGD([torch.ones(1)], lr=rate) for rate in (0.1, 0.2))
    >>> both = Optimizers({"g": first, "d": second})
    >>> [group["lr"] for group in both.param_groups]
    [0.1, 0.2]
    """

    def __init__(self, named: Mapping[str, Optimizer]) -> None:
        # Without torch's constructor, which makes groups of its own.
        self.named = dict(named)
        self.defaults = {}
        self._optimizer_step_pre_hooks = OrderedDict()
        self._optimizer_step_post_hooks = OrderedDict()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all, in the order of the optimizers."""
        return [group for each in self.named.values() for group in each.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """What they keep for each parameter, to look at. If two have one parameter, the last one's."""
        return {key: value for each in self.named.values() for key, value in each.state.items()}

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients of all."""
        for each in self.named.values():
            clear(each)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Take a step of each."""
        for each in self.named.values():
            step(each)
        for hook in tuple(self._optimizer_step_post_hooks.values()):
            hook(self, (), {})

    def state_dict(self) -> dict[str, Any]:
        """Each one's, by its name."""
        return {name: each.state_dict() for name, each in self.named.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return Optimizers, (self.named,)

    def __repr__(self) -> str:
        return f"Optimizers({self.named!r})"


def named_of(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The optimizers by name; a single one has none.

    >>> import torch
    >>> list(named_of(torch.optim.SGD([torch.ones(1)], lr=0.1)))
    ['']
    """
    return optimizer.named if isinstance(optimizer, Optimizers) else {"": optimizer}


def as_given(optimizer: Optimizer) -> Optimizer | dict[str, Optimizer]:
    """As the user gave them: the one, or all by name."""
    return dict(optimizer.named) if isinstance(optimizer, Optimizers) else optimizer


def each_of(given: Any) -> list[Any]:
    """The members of a mapping or a list, such as optimizers or schedules; else what was given, alone.

    >>> each_of({"g": 1, "d": 2}), each_of(3)
    ([1, 2], [3])
    """
    if isinstance(given, Mapping):
        return list(given.values())
    return list(given) if isinstance(given, (list, tuple)) else [given]


def kind_of(optimizer: Optimizer) -> str:
    """The name of its class; of several, each one's.

    >>> import torch
    >>> kind_of(Optimizers({"g": torch.optim.SGD([torch.ones(1)], lr=0.1)}))
    'g: SGD'
    """
    if isinstance(optimizer, Optimizers):
        return ", ".join(f"{name}: {type(each).__name__}" for name, each in optimizer.named.items())
    return type(optimizer).__name__


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters of all its groups."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])
