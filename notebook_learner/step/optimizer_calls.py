"""An optimizer's step: how the loop calls it, and how it hears of calls by the user's code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from torch._C._autograd import _profiler_enabled
from torch.optim import Optimizer
from torch.optim import optimizer as theirs

# The loop's calls ------------------------------------------------------------------------------------

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
        or has_hooks(optimizer)
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


# Calls by the user's code ----------------------------------------------------------------------------


class StepListener(Protocol):
    """Hears of steps that the loop did not ask for."""

    def stepping(self, name: str, closure: Any) -> Any:
        """The optimizer of this name is about to step; return another closure for it, or None."""


class _Heard:
    """The hook of one optimizer: it tells all listeners, as several learners may have the optimizer, such as
    after the cell that builds was run again."""

    def __init__(self) -> None:
        self.names: WeakKeyDictionary[StepListener, str] = WeakKeyDictionary()
        """By listener: the name that it has for the optimizer."""

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        others = [listener.stepping(name, closure) for listener, name in tuple(self.names.items())]
        other = next((each for each in others if each is not None), None)
        return None if other is None else ((args[0], other, *args[2:]), _without_closure(kwargs))


def _without_closure(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name != "closure"}


def tell_of_steps(optimizer: Optimizer, listener: StepListener, name: str) -> None:
    """Tell a listener before each step of this optimizer, and of those that it wraps, whoever steps them. The
    listener is not kept alive."""
    for single in with_wrapped(optimizer):
        hooks: Mapping[Any, Any] = single._optimizer_step_pre_hooks
        heard = next((hook for hook in hooks.values() if type(hook) is _Heard), None)
        if heard is None:
            heard = _Heard()
            single.register_step_pre_hook(heard)
        heard.names[listener] = name


def with_wrapped(optimizer: Optimizer) -> list[Optimizer]:
    """It, and the optimizers among its attributes, such as the one that SAM or Lookahead steps."""
    found: list[Optimizer] = []
    waiting = [optimizer]
    while waiting:
        each = waiting.pop(0)
        if all(each is not other for other in found):
            found.append(each)
            waiting += [value for value in vars(each).values() if isinstance(value, Optimizer)]
    return found


def may_step(code: CodeType) -> bool:
    """Whether a function's code has something of the name `step`, such as an optimizer's method.

    >>> may_step((lambda optimizer: optimizer.step()).__code__), may_step((lambda loss: loss).__code__)
    (True, False)
    """
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return "step" in code.co_names or any(map(may_step, inner))


def has_hooks(optimizer: Optimizer) -> bool:
    """Whether a step of the optimizer runs hooks of the user's. Asked before each step: 0.2 us."""
    if optimizer._optimizer_step_post_hooks:
        return True
    for hook in optimizer._optimizer_step_pre_hooks.values():  # noqa: SIM110  (`any` takes twice as long)
        if hook.__class__ is not _Heard:
            return True
    return False
