"""Models that compute their own loss, such as those of transformers: called with the batch as it comes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Literal
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from ..errors import StepError, a_kind
from ..event import Split
from ..metric.inputs import TARGETS


def takes_targets(model: Any) -> bool:
    """Whether the model's forward takes targets by one of their usual names: then it computes a loss.

    >>> class Model(nn.Module):
    ...     def forward(self, x, labels=None): ...
    >>> takes_targets(Model()), takes_targets(nn.Linear(1, 1))
    (True, False)
    """
    names = (name for name in TARGETS if name != "y")  # which may be any second input
    return isinstance(model, nn.Module) and any(name in _parameters_of(model) for name in names)


StepKind = Split | Literal["predict"]
LIGHTNING_STEPS: Mapping[StepKind, str] = {
    "train": "training_step",
    "valid": "validation_step",
    "predict": "predict_step",
}


CELL = "a cell"
"""The name of a step that a notebook's cell is: it comes after the learner was built."""
MODEL_STEPS = ("train_step", "valid_step", "training_step", "validation_step")
"""The steps that a model may define."""


def lightning_method(model: Any, name: str) -> Any:
    """The model's method of this name, unless it is one that Lightning's own class brings.

    >>> class Lit(nn.Module):
    ...     def training_step(self, batch, batch_idx): ...
    >>> lightning_method(Lit(), "training_step") is not None, lightning_method(nn.Linear(1, 1), "backward")
    (True, None)
    """
    method = getattr(model, name, None)
    home = getattr(method, "__module__", "").partition(".")[0]
    return method if callable(method) and home not in ("lightning", "pytorch_lightning") else None


def with_its_own_loss(model: nn.Module, batch: Any) -> Any:
    """Call the model with a batch, by the batch's keys or parts. Return its loss, with the output and the
    targets for metrics."""
    output = called_with(model, batch)
    item = SimpleNamespace(loss=_loss_in(output), output=_output_in(output), model_output=output)
    if isinstance(batch, Mapping):
        item.targets = next((batch[name] for name in TARGETS if name in batch), None)
    else:
        item.targets = batch[-1] if isinstance(batch, (tuple, list)) else None
    return item


def called_with(model: nn.Module, batch: Any, but: tuple[str, ...] = ()) -> Any:
    """What the model makes of a batch: of a dict by its keys, of a tuple by its parts. Keys that the model
    does not take, and those of `but`, are left out."""
    if isinstance(batch, Mapping):
        takes = _parameters_of(model)
        every = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        left = {key: value for key, value in batch.items() if key not in but}
        given = {key: value for key, value in left.items() if every or key in takes}
        if len(left) == 1 and not given:  # there is no doubt, whatever its name
            return model(*left.values())
        if missing := [name for name, each in takes.items() if _is_needed(each) and name not in given]:
            raise StepError(
                f"{type(model).__name__} takes {missing[0]!r}, and the batch has {', '.join(map(str, batch))}"
                "; give the batch that key, or say how to train with train_step(fn)"
            )
        return model(**given)
    if isinstance(batch, (tuple, list)):
        return model(*batch)
    return model(batch)


def names_after_output(loss: Callable[..., Any]) -> list[str]:
    """The names of a loss function's parameters, without the first.

    >>> names_after_output(nn.CrossEntropyLoss())
    ['target']
    """
    return list(_parameters(loss.forward if isinstance(loss, nn.Module) else loss))[1:]


def may_take_keys(loss: Any) -> bool:
    """Whether it may be meant for batches that are dicts, of which it takes several keys."""
    names = names_after_output(loss)
    return not isinstance(loss, nn.Module) and len(names) > 1 and names[0] in TARGETS


def with_named_targets(model: nn.Module, loss: Callable[..., Any], batch: Mapping[str, Any]) -> Any:
    """Return `loss(model(...), ...)` of a dict: after the output, the loss takes the batch's keys by the
    names of its parameters."""
    names = [name for name in names_after_output(loss) if name in batch]
    if not names:
        known = [name for name in TARGETS if name in batch][:1]
        if not known:
            raise StepError(
                f"loss(fn) takes the targets of a dict by the names of fn's parameters, and the batch has "
                f"{', '.join(map(str, batch))}: write def fn(output, labels), with one of these names"
            )
        output = called_with(model, batch, tuple(known))
        return loss(output, batch[known[0]]), output, batch[known[0]]
    output = called_with(model, batch, tuple(names))
    return loss(output, *[batch[name] for name in names]), output, batch[names[0]]


def _is_needed(parameter: inspect.Parameter) -> bool:
    positional = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return positional and parameter.default is parameter.empty


def _parameters_of(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Those of the model's forward; of a model that adapters wrap, those of the model inside."""
    inner = getattr(model, "get_base_model", None)
    return _parameters((inner() if callable(inner) else model).forward)


_KNOWN: WeakKeyDictionary[Any, Mapping[str, inspect.Parameter]] = WeakKeyDictionary()


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function or method, read once: it takes 20 us, and each step asks. A function in C
    may have none that can be read."""
    written = getattr(function, "__func__", function)
    known = _KNOWN.get(written)
    if known is None:
        try:
            known = inspect.signature(function).parameters
        except (TypeError, ValueError):
            known = {}
        _KNOWN[written] = known
    return known


def _loss_in(output: Any) -> Any:
    if (loss := getattr(output, "loss", None)) is not None:
        return loss
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor) and output[0].ndim == 0:
        return output[0]
    raise StepError(
        f"the model returned {a_kind(output)} without a loss; give it the targets, or say how to train with "
        "loss(fn) or train_step(fn)"
    )


def _output_in(output: Any) -> Any:
    """What metrics compare with the targets."""
    for name in ("logits", "output"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if found is not None:
            return found
    return output[1] if isinstance(output, tuple) and len(output) > 1 else None
