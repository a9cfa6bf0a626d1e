"""torch's two calls of an optimizer, without the labels that nobody reads.

`step()` and `zero_grad()` open a label each for the profiler, whether one runs or not, which is a good part
of what a small model's step costs. Here the same work is done without, as long as nobody can tell: with a
profiler, a hook, a class or an instance that does something of its own, the optimizer is called as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch._C._autograd import _profiler_enabled
from torch.optim import Optimizer
from torch.optim import optimizer as theirs

_ZERO_GRAD = Optimizer.zero_grad


def clear(optimizer: Optimizer) -> None:
    """`optimizer.zero_grad()`: no parameter has a gradient any more."""
    if (
        type(optimizer).zero_grad is not _ZERO_GRAD
        or "zero_grad" in optimizer.__dict__
        or _profiler_enabled()
    ):
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def step(optimizer: Optimizer) -> None:
    """`optimizer.step()`."""
    function: Any = type(optimizer).step
    if (
        getattr(function, "__code__", None) is not _LABELLED
        or "step" in optimizer.__dict__  # a schedule of torch counts the calls there
        or _GLOBAL_BEFORE
        or _GLOBAL_AFTER
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _profiler_enabled()
    ):
        optimizer.step()
    else:
        function.__wrapped__(optimizer)


def _labelled() -> CodeType | None:
    """What every `step` runs that torch has put label and hooks around, and nobody anything else: a function
    around that would have code of its own. None where this torch goes about it in another way."""
    label: Callable[[Any], Any] | None = getattr(Optimizer, "profile_hook_step", None)
    if label is None or _GLOBAL_BEFORE is None or _GLOBAL_AFTER is None:
        return None
    wrapped = label(Optimizer.step)
    return wrapped.__code__ if getattr(wrapped, "__wrapped__", None) is Optimizer.step else None


# The dicts themselves, which torch writes into.
_GLOBAL_BEFORE: Any = getattr(theirs, "_global_optimizer_pre_hooks", None)
_GLOBAL_AFTER: Any = getattr(theirs, "_global_optimizer_post_hooks", None)
_LABELLED = _labelled() or object()
"""An object of ours is the code of no function."""
