"""torch's two calls of an optimizer, without the profiler's labels.

`step()` and `zero_grad()` each open a label for the profiler, also if no profiler runs. That is a large part
of the cost of a small model's step. Here the same work is done without labels, if that makes no difference.
With a profiler, a hook, or a class or an instance that changes a method, the optimizer is called as usual.
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
    """Do what `optimizer.zero_grad()` does: no parameter has a gradient afterwards."""
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
    """Do what `optimizer.step()` does."""
    function: Any = type(optimizer).step
    if (
        getattr(function, "__code__", None) is not _LABELLED
        or "step" in optimizer.__dict__  # torch's schedules count the calls there
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
    """The code of every `step` that torch alone has wrapped with label and hooks: a further wrapper would
    have another code. None if this torch does it in another way."""
    label: Callable[[Any], Any] | None = getattr(Optimizer, "profile_hook_step", None)
    if label is None or _GLOBAL_BEFORE is None or _GLOBAL_AFTER is None:
        return None
    wrapped = label(Optimizer.step)
    return wrapped.__code__ if getattr(wrapped, "__wrapped__", None) is Optimizer.step else None


# The dicts themselves, which torch writes into.
_GLOBAL_BEFORE: Any = getattr(theirs, "_global_optimizer_pre_hooks", None)
_GLOBAL_AFTER: Any = getattr(theirs, "_global_optimizer_post_hooks", None)
_LABELLED = _labelled() or object()
"""A plain object is not the code of any function."""
