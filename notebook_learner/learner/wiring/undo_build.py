"""Building changes what it was given: the model moves, a scheduler takes hold of the optimizer.

When the build fails after all, everything is put back as it was, so that the corrected cell starts from
the same place as the first one.
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
    """Modules and optimizers come out of a failure as they went in; other things are passed over."""
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
    """Where every tensor lies. A move leaves the old memory alone, so a reference is enough."""
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
            held[name] = tensor  # type: ignore[assignment]  # the very one that was there
        for grad, data in grads:
            grad.data = data
        for module, call in compiled:
            module._compiled_call_impl = call

    return undo


def _remember_optimizer(optimizer: Optimizer) -> Undo:
    """Its attributes (a scheduler wraps `step`), its groups (rates, momenta) and its state's tensors."""
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
