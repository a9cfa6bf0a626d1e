"""What a step returns: the loss, the values that metrics read, and the number of samples of the loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from ..data.batch import count_samples
from ..errors import LossError, StepError, a_kind

Gradients = Mapping[Any, Tensor | None] | Sequence[Tensor | None] | None


@dataclass(slots=True)
class _PerSample:
    """The common part of three outputs: the first dimension counts samples."""

    loss: Tensor
    output: Tensor
    targets: Tensor

    @property
    def weight(self) -> int:
        """The number of samples that the loss is the mean of."""
        return self.targets.shape[0]


@dataclass(slots=True)
class ClassificationOutput(_PerSample):
    """One class per sample: scores `output` of shape (N, C, ...), integer `targets` (N, ...)."""


@dataclass(slots=True)
class MultiLabelClassificationOutput(_PerSample):
    """Several labels per sample: scores `output` and 0/1 `targets`, both of shape (N, C)."""


@dataclass(slots=True)
class RegressionOutput(_PerSample):
    """Numbers: `output` and `targets` of the same shape (N, ...)."""


@dataclass(slots=True)
class SequenceOutput:
    """Tokens: `logits` (N, T, C), `targets` (N, T), and the decoded predictions, if there are any.

    Tokens equal to `ignore_index` are padding. The loss is assumed to be the mean over the other tokens. So
    accumulation and averages weigh by tokens: a window of short and long sentences equals one large batch.
    """

    loss: Tensor
    logits: Tensor
    targets: Tensor
    predictions: Tensor | None = None
    ignore_index: int | None = -100

    @property
    def output(self) -> Tensor:
        """The logits under the name every other output uses, with classes in dimension 1."""
        return self.logits.movedim(-1, 1)

    @property
    def weight(self) -> Tensor | int:
        """The number of tokens that the loss is the mean of. It is on the device: a read would wait for the
        device."""
        if self.ignore_index is None:
            return self.targets.numel()
        return (self.targets != self.ignore_index).sum()


@dataclass(slots=True)
class TrainOutput:
    """A step that computed its gradients itself: `TrainOutput(self, loss.backward(), item)`, as in Burn.

    `grads` is None if they are in `.grad` (what `backward()` returns). Otherwise it is a mapping from
    parameter or parameter name to gradient, or a sequence in the order of `model.parameters()`.
    """

    model: Any
    grads: Gradients
    item: Any


@dataclass(slots=True)
class LossOutput:
    """The output that stands for a step that returned only a scalar tensor."""

    loss: Tensor


def as_item(output: Any) -> Any:
    """The output in which metrics find `.loss`: a bare tensor is wrapped, the keys of a dict with a `loss`
    become attributes, and a tuple may be `(loss, output)` or `(loss, output, targets)`.

    >>> as_item({"loss": 1.0, "output": 2.0}).loss
    1.0
    """
    if isinstance(output, Tensor):
        return LossOutput(output)
    if type(output) is dict and "loss" in output:
        return SimpleNamespace(**{str(key): value for key, value in output.items()})
    if type(output) is tuple and len(output) in (2, 3) and getattr(output[0], "ndim", 1) == 0:
        return SimpleNamespace(**dict(zip(("loss", "output", "targets"), output, strict=False)))
    return output


def weight_of(item: Any, batch: Any) -> Tensor | int | float:
    """The number of samples that an output's loss is the mean of: the output's own number, or the batch's
    size."""
    weight: Tensor | int | float | None = getattr(item, "weight", None)
    return count_samples(batch) if weight is None else weight


def loss_of(output: Any) -> Tensor:
    """The loss of what a training step returned, or an error that says what the step returned instead."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor) and loss.ndim == 0 and loss.requires_grad:
        return loss
    raise LossError(_why_no_loss(output, loss))


def _why_no_loss(output: Any, loss: Any) -> str:
    kind = type(output).__name__
    if output is None:
        return "train_step returned None; end it with `return ClassificationOutput(loss, output, targets)`"
    if loss is None and hasattr(output, "loss"):
        return (
            f"the `.loss` of the {kind} that train_step returned is None; compute it in the step (a Hugging "
            "Face model does so itself where the batch has `labels`)"
        )
    if loss is None:
        return f"train_step returned {a_kind(output)} {_without_loss(output)}"
    if not isinstance(loss, Tensor):
        return (
            f"the loss is {a_kind(loss)} ({loss!r:.40}), not a tensor, so there is nothing to "
            "differentiate; leave out `.item()` or `float(...)`"
        )
    if loss.ndim != 0:
        return (
            f"the loss has shape {tuple(loss.shape)}, but backward needs a scalar; reduce it with "
            "`.mean()`, or leave out `reduction='none'`"
        )
    return (
        "the loss does not require a gradient: no parameter that trains took part in it; look for "
        "`.detach()`, `torch.no_grad()`, or parameters with requires_grad=False"
    )


def _without_loss(output: Any) -> str:
    if isinstance(output, Mapping):
        return (
            "without the key 'loss'; return {'loss': loss, ...}, or ClassificationOutput(loss, output, "
            "targets)"
        )
    return (
        "without a `.loss`; return ClassificationOutput(loss, output, targets), any object with `.loss`, or "
        "TrainOutput(model, grads, item)"
    )


# Gradients that a step has computed -----------------------------------------------------------------------

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
