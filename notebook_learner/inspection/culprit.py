"""Find the origin of the first NaN or inf: the data, a parameter, a module, the loss or the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from .batch import tensors_in
from .module_hooks import Call, ModuleWatch, plain_model
from .samples import item_of, loss_of
from .statistics import Finding, Questions, worst

Stage = Literal["parameter", "input", "forward", "loss", "backward", "update"]


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first thing in a step that was not finite.

    Attributes:
        stage: the part of the step: parameter (before it), input, forward, loss, backward, update.
        name: the module, the parameter, or the tensor of the batch.
        text: a sentence that says this to the user.
    """

    stage: Stage
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.stage}: {self.text}"


Named = Sequence[tuple[str, int]]


class Trace:
    """Checks the tensors of a step in its order, and finds the first that is not finite."""

    def __init__(self, batch: Any, model: nn.Module, *, measuring: bool = False) -> None:
        self._questions = Questions()
        self._model = plain_model(model)
        self.watch = ModuleWatch(model, self._questions, measuring=measuring)
        self._batch = self._ask(tensors_in(batch))
        self._parameters = self._ask(self._model.named_parameters())
        self._buffers = self._ask(self._model.named_buffers())
        self._loss: Named = ()
        self._gradients: Named = ()
        self._updated: Named = ()

    def _ask(self, named: Iterable[tuple[str, Tensor]]) -> Named:
        pairs = [*named]
        return [
            *zip(
                [name for name, _ in pairs], self._questions.ask([tensor for _, tensor in pairs]), strict=True
            )
        ]

    def after_step(self, output: Any) -> None:
        """Check the loss and the gradients of parameters, which are in `.grad`."""
        loss = loss_of(item_of(output))
        self._loss = self._ask([] if loss is None else [("loss", loss)])
        parameters = self._model.named_parameters()
        self._gradients = self._ask((name, p.grad) for name, p in parameters if p.grad is not None)

    def after_update(self) -> None:
        """Check the parameters after the optimizer's step."""
        self._updated = self._ask(self._model.named_parameters())

    def culprit(self, *, failed: bool = False) -> Culprit | None:
        """Return the first; None if all was finite, or only masks of -inf were not."""
        found = self._questions.answers()
        ends = [*self._loss, *self._gradients, *self._updated]
        # Masks are -inf on purpose. They count last, and only if the step failed or its results are bad.
        harmed = failed or any(found[question].level for _, question in ends)
        forward = _Forward(self.watch, found, harmed)
        return (
            self._named("input", self._batch, found, 2)
            or self._named("parameter", self._parameters, found, 1)
            or self._named("parameter", self._buffers, found, 2)
            or forward.culprit()
            or self._named("loss", self._loss, found, 1)
            or _Backward(self.watch, found).culprit()
            or self._named("backward", self._gradients, found, 1)
            or self._named("update", self._updated, found, 1)
            or (self._named("input", self._batch, found, 1) if harmed else None)
        )

    def _named(self, stage: Stage, named: Named, found: Sequence[Finding], level: int) -> Culprit | None:
        for name, question in named:
            finding = found[question]
            if finding.level >= level:
                return Culprit(stage, name or "batch", _TEXTS[stage](name, finding))
        return None


_TEXTS: dict[Stage, Callable[[str, Finding], str]] = {
    "input": lambda name, found: f"{found} of the batch{name} are not finite, before any module has run",
    "parameter": lambda name, found: f"{found} of {name} were not finite before the step",
    "loss": lambda _, found: (
        f"the loss is {_spelt(found)}, but all outputs of the model's modules are finite: look at how it is "
        "computed from the output and the targets"
    ),
    "backward": lambda name, found: (
        f"{found} of the gradient of {name} are not finite, but those of all outputs are: look at what "
        "the module does with this parameter"
    ),
    "update": lambda name, found: (
        f"{found} of {name} are not finite after the optimizer's step, but loss and gradients are: look "
        "at the learning rate and the optimizer's state"
    ),
}


def _spelt(finding: Finding) -> str:
    if finding.low != finding.low:
        return "NaN"
    return "inf" if finding.high > 0 else "-inf"


class _Forward:
    """Finds the first module with finite inputs and an output that is not finite."""

    def __init__(self, watch: ModuleWatch, found: Sequence[Finding], harmed: bool) -> None:
        self._watch, self._found, self._harmed = watch, found, harmed

    def culprit(self) -> Culprit | None:
        # A module returns after its parts: so the first one is the innermost.
        for call in self._watch.ended:
            given, gave = self._given(call), self._gave(call)
            if gave.level > given.level and (gave.level == 2 or self._harmed):
                return Culprit("forward", call.name or call.kind, self._text(call, gave))
        # No module has finite inputs and a bad output. So the step's own code may have made the value,
        # between two modules that it calls.
        for at, call in enumerate(self._watch.started):
            given = self._given(call)
            if given.level == 2:
                return Culprit("forward", call.name or call.kind, self._handed(at, call, given))
        return None

    def _given(self, call: Call) -> Finding:
        return worst(self._found[question] for question in call.inputs)

    def _gave(self, call: Call) -> Finding:
        return worst(self._found[question] for question in call.outputs)

    def _text(self, call: Call, gave: Finding) -> str:
        values = f"{gave} of the output of {call.label} are not finite, but all of its inputs were finite"
        parts = [part for part in self._watch.started if part.parent is call]
        if not parts:
            return values
        # Its parts are not the cause: the code of its own forward is.
        bad = next((at for at, part in enumerate(parts) if self._given(part).level == 2), len(parts))
        before = f"after {parts[bad - 1].label}" if bad else ""
        until = f"before {parts[bad].label}" if bad < len(parts) else ""
        between = " and ".join(part for part in (before, until) if part)
        return f"{values}: look at its own forward, {between}"

    def _handed(self, at: int, call: Call, given: Finding) -> str:
        before = f", after {self._watch.started[at - 1].label}" if at else ""
        return f"{given} of the inputs of {call.label} are not finite: look at what the step computes{before}"


class _Backward:
    """Finds the module, or the code around it, that turned finite gradients into one that is not finite."""

    def __init__(self, watch: ModuleWatch, found: Sequence[Finding]) -> None:
        self._watch = watch
        self._levels = {number: found[question].level for number, question in watch.gradients.items()}
        self._found = {number: found[question] for number, question in watch.gradients.items()}

    def culprit(self) -> Culprit | None:
        first = next((number for number, level in self._levels.items() if level), None)
        if first is None:
            return None
        users = self._users(first)
        if users:
            user, *others = users
            return Culprit("backward", user.name or user.kind, self._through(first, user, others))
        maker = next((call for call in self._watch.ended if first in call.out_of), None)
        if maker is None:
            text = f"{self._found[first]} of a gradient are not finite"
            return Culprit("backward", "step", f"{text}: look at what the step computes after the model")
        if self._is_models_output(first):
            return Culprit("backward", "loss", self._into_output(first))
        return Culprit("backward", maker.name or maker.kind, self._after(first, maker))

    def _users(self, number: int) -> list[Call]:
        """The innermost modules with this tensor as input and finite gradients at their output."""
        users = [call for call in self._watch.started if number in call.into and self._was_given_finite(call)]
        outer = {id(user.parent) for user in users}
        return [user for user in users if id(user) not in outer]

    def _was_given_finite(self, call: Call) -> bool:
        known = [self._levels[number] for number in call.out_of if number in self._levels]
        return bool(known) and not any(known)

    def _is_models_output(self, number: int) -> bool:
        return any(number in call.out_of for call in self._watch.ended if call.name == "")

    def _through(self, number: int, user: Call, others: list[Call]) -> str:
        also = f" (or of {', '.join(other.label for other in others)})" if others else ""
        return (
            f"{self._found[number]} of the gradient are not finite after the backward pass of {user.label}"
            f"{also}, but the gradient of its output is finite"
        )

    def _into_output(self, number: int) -> str:
        return (
            f"{self._found[number]} of the loss's gradient at the model's output are not "
            "finite, but the loss is: look for a root, a logarithm or a division in it"
        )

    def _after(self, number: int, maker: Call) -> str:
        around = f" in the forward of {maker.parent.label}" if maker.parent is not None else ""
        return (
            f"{self._found[number]} of the gradient at the output of {maker.label} are not "
            f"finite: look at what the code does with this output{around}"
        )


def trace_non_finite(batch: Any, run: Callable[[], Any], model: nn.Module) -> Culprit | None:
    """Run a step and name the first thing in it that is not finite; None if all is finite.

    Args:
        batch: the step's batch, which is checked first.
        run: one forward and backward pass; the caller restores all that it changes. An exception in it
            ends the trace, and the values seen until then count.
        model: the model whose modules are named.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> def run():
    ...     loss = model(x).sum()
    ...     loss.backward()
    ...     return loss
    >>> x = torch.tensor([[1.0, float("inf")]])
    >>> trace_non_finite(x, run, model).stage
    'input'
    """
    trace = Trace(batch, model)
    failed = False
    with trace.watch.watching():
        try:
            output = run()
        except Exception:
            failed, output = True, None
    if not failed:
        trace.after_step(output)
    return trace.culprit(failed=failed)
