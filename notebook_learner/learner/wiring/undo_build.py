"""Undo the changes of a failed build: the model moves, and a scheduler changes the optimizer.

After a failure everything is put back as it was, so that the corrected cell starts from the same state as the
first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

Undo = Callable[[], None]


@contextmanager
def unchanged_if_it_fails(things: Iterable[Any]) -> Iterator[None]:
    """Restore modules and optimizers if the block fails; other things are ignored."""
    undos = [_remember(thing) for thing in things if isinstance(thing, (nn.Module, Optimizer))]
    try:
        yield
    except BaseException:
        for undo in undos:
            undo()
        raise


def _remember(thing: nn.Module | Optimizer) -> Undo:
    return _remember_module(thing) if isinstance(thing, nn.Module) else _remember_optimizer(thing)


def _remember_module(model: nn.Module) -> Undo:
    """Remember every tensor. A move does not touch the old memory, so a reference is enough."""
    tensors = [
        (held, name, tensor, tensor.data)
        for module in model.modules()
        for held in (module._parameters, module._buffers)
        for name, tensor in held.items()
        if tensor is not None
    ]
    grads = [(p.grad, p.grad.data) for p in model.parameters() if p.grad is not None]
    compiled = [(module, module._compiled_call_impl) for module in model.modules()]

    def undo() -> None:
        for held, name, tensor, data in tensors:
            tensor.data = data
            held[name] = tensor  # type: ignore[assignment]  # the same tensor as before
        for grad, data in grads:
            grad.data = data
        for module, call in compiled:
            module._compiled_call_impl = call

    return undo


def _remember_optimizer(optimizer: Optimizer) -> Undo:
    """Remember its attributes (a scheduler wraps `step`), its groups (rates, momenta) and its state's
    tensors."""
    attributes = dict(vars(optimizer))
    held = [*optimizer.param_groups, *(held for held in optimizer.state.values() if isinstance(held, dict))]
    contents = [(live, dict(live)) for live in held]
    rates = [
        (rate, rate.clone())
        for group in optimizer.param_groups
        if isinstance(rate := group.get("lr"), Tensor)
    ]

    def undo() -> None:
        vars(optimizer).clear()
        vars(optimizer).update(attributes)
        for live, content in contents:
            live.clear()
            live.update(content)
        for rate, value in rates:  # a scheduler writes into the tensor itself
            rate.copy_(value)

    return undo
