"""Gradients that a step computed itself (`TrainOutput.grads`): each is assigned to its parameter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import StepError, a_kind

_NONE_THERE = (
    "TrainOutput(grads=None) says that the gradients are in `.grad`, but no parameter has one; call "
    "item.loss.backward() before, or return the item and let the learner do it"
)


def assign(gradients: Any, model: nn.Module) -> None:
    """Put gradients where the optimizer reads them; None means that they are there already."""
    if gradients is None:
        if all(parameter.grad is None for parameter in model.parameters()):
            raise StepError(_NONE_THERE)
        return
    for name, parameter, grad in _matched(gradients, model):
        try:
            parameter.grad = grad
        except (RuntimeError, TypeError) as refused:
            raise StepError(f"TrainOutput.grads does not fit the parameter {name!r}: {refused}") from None


def _matched(gradients: Any, model: nn.Module) -> Iterable[tuple[str, nn.Parameter, Any]]:
    if isinstance(gradients, Mapping):
        return [(*_find(key, model), grad) for key, grad in gradients.items()]
    if isinstance(gradients, Tensor) or not isinstance(gradients, Iterable):
        raise StepError(
            f"TrainOutput.grads is of type {type(gradients).__name__}; give None where `backward()` left "
            "them in `.grad`, a mapping by name or parameter, or one gradient for each parameter"
        )
    named, grads = list(model.named_parameters()), list(gradients)
    if len(grads) != len(named):
        raise StepError(
            f"TrainOutput.grads holds {len(grads)} gradients, but the model has {len(named)} parameters; "
            "give one each, in the order of model.parameters(), or a mapping by name"
        )
    return [(name, parameter, grad) for (name, parameter), grad in zip(named, grads, strict=True)]


def _find(key: Any, model: nn.Module) -> tuple[str, nn.Parameter]:
    names = dict(model.named_parameters(remove_duplicate=False))  # a tied one has either name
    for name, parameter in names.items():
        if parameter is key or name == key:
            return name, parameter
    shown = repr(key) if isinstance(key, str) else a_kind(key)
    raise StepError(
        f"TrainOutput.grads names {shown}, which is no parameter of the model; there are: {', '.join(names)}"
    )
