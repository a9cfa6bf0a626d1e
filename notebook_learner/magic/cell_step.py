"""A cell as the learner's step: calls the body, keeps what it left, and makes the output for the metrics."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Collection, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from IPython.core.error import UsageError
from torch import Tensor

from ..event.values import Split
from ..learner.learner import Learner
from ..step.output import (
    ClassificationOutput,
    MultiLabelClassificationOutput,
    RegressionOutput,
    SequenceOutput,
)
from ..step.step import kind_of
from .cell_body import MISSING, Body, Targets, compiled, source_of

Values = Mapping[str, Any]
MakeOutput = Callable[[Values], Any]


class CellStep:
    """`fn(model, batch) -> output` of a `%%train` or `%%valid` cell.

    It does not keep its learner alive: the learner holds it.
    """

    def __init__(
        self, learner: Learner, body: Body, kind: str | None = None, carried: Values | None = None
    ) -> None:
        self._learner = weakref.ref(learner)
        self.body = body
        self.kind = kind
        self.is_recorded = False
        """Whether it was made of a run's record, and not of a cell that was run here."""
        names = body.function.__globals__ if carried is None else carried
        self.carried = {name: names[name] for name in body.carried if name in names}
        """The values that go from step to step, at first the notebook's; a rewind brings them back."""
        self._at_first = {name: copied for name, value in self.carried.items() if (copied := _copy(value))}
        self.make_output = output_maker(kind, body.assigned, body.targets)

    @property
    def written(self) -> Any:
        """The body: what the user wrote of this step."""
        return self.body.function

    @property
    def options(self) -> dict[str, Any]:
        """What it was given beside its text, for the record of the run: `output`, and the numbers with which
        `carried` names began."""
        begun = {name: value for name, (value,) in self._at_first.items()}
        numbers = {name: value for name, value in begun.items() if _is_a_number(value)}
        return {"output": self.kind, **{f"carried.{name}": value for name, value in numbers.items()}}

    @property
    def cell_text(self) -> str:
        """What the user wrote, for the record of the run."""
        return self.body.text

    def __call__(self, model: Any, batch: Any) -> Any:
        __tracebackhide__ = True
        learner = self._learner()
        assert learner is not None  # the learner calls this
        learner.locals = {}  # frees the last step's values before this step's memory peak
        loop = learner._replica.loop  # learner.position would make an object: 2 us more
        try:
            before = [self.carried.get(name, MISSING) for name in self.body.carried]
            values = self.body.function(model, batch, learner, loop.epoch, loop.done, *before)
        except UnboundLocalError as error:
            self._explain(error)
            raise
        for name in self.body.carried:
            if name in values:
                self.carried[name] = values[name]
        learner.locals = values
        return self.make_output(values)

    def is_like(self, other: object) -> bool:
        """Whether both have the same code, apart from comments."""
        return isinstance(other, CellStep) and (self.body.shape, self.kind) == (other.body.shape, other.kind)

    def follow(self, other: CellStep) -> None:
        """Take over the values of the cell before an edit, as far as both carry them."""
        self.carried |= {name: value for name, value in other.carried.items() if name in self.body.carried}

    def begin_again(self) -> None:
        """Take the values with which the cell was put in, where they are small: the steps since are taken
        again."""
        self.carried |= {name: deepcopy(value) for name, (value,) in self._at_first.items()}

    def adopt(self, other: CellStep) -> None:
        """Take the place of the unchanged cell that was run again, as its lines may have moved."""
        self.body = other.body
        self.is_recorded = False

    def of(self, learner: Learner) -> CellStep:
        """The same step for another learner, such as a fork."""
        return CellStep(learner, self.body, self.kind, self.carried)

    def __deepcopy__(self, memo: dict[int, Any]) -> CellStep:
        """For a fork: the body is copied, with what it reaches; the learner comes by `of`."""
        copied: Any = CellStep.__new__(CellStep)
        body = replace(self.body, function=deepcopy(self.body.function, memo))
        copied.__dict__.update(self.__dict__, body=body, carried=deepcopy(self.carried, memo))
        return copied  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the learner, which stays in its process: other ranks have their own learners."""
        return _of_nobody, (self.body, self.kind, self.carried)

    def _explain(self, error: UnboundLocalError) -> None:
        """Say why a name has no value here although the next cell can print it; Python's message does not."""
        found = re.search(r"'(\w+)'", str(error))
        name = found[1] if found else ""
        if name in self.body.assigned and name in self.body.function.__globals__:
            error.args = (
                f"{error}: the cell assigns {name!r}, so it is the step's own name all through the cell, and "
                f"not the notebook's {name!r}; take another name for one of the two",
            )


_LARGEST = 1 << 12
"""Numbers in a value that is kept as it was at first."""


def _is_a_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) and math.isfinite(value)


def _copy(value: Any) -> tuple[Any] | None:
    """A copy of a number, a text, or a small collection or tensor of these; None of anything else."""
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return (value,)
    if isinstance(value, Tensor) and value.numel() <= _LARGEST:
        return (value.detach().clone(),)
    if type(value) in (list, tuple, dict) and len(value) <= _LARGEST:
        inner = value.values() if isinstance(value, dict) else value
        if all(_copy(each) for each in inner):
            return (deepcopy(value),)
    return None


def cell_of_record(shell: Any, learner: Learner, split: Split, text: str, options: Values) -> CellStep:
    """The cell that an earlier process trained by, made of its text and options as if it was run again."""
    body = compiled(shell, source_of(shell, split, "", text), split)
    begun = {name: options[f"carried.{name}"] for name in body.carried if f"carried.{name}" in options}
    step = CellStep(learner, body, options.get("output"), {**shell.user_ns, **begun})
    step.is_recorded = True
    return step


class _Nobody:
    """Stands in for a learner while a step is sent to another process."""


def _of_nobody(body: Body, kind: str | None, carried: Values) -> CellStep:
    nobody: Any = _Nobody()
    return CellStep(nobody, body, kind, carried)


# Outputs ---------------------------------------------------------------------------------------------

KINDS = ("classification", "regression", "multilabel", "sequence", "none")
"""What `--output` takes."""


def output_maker(kind: str | None, assigned: Collection[str], targets: Targets) -> MakeOutput:
    """Choose how the output is made from the values, once for all steps, by the names.

    Raises:
        UsageError: the kind asked for needs a name that the body never assigns.
    """
    plain = _plain_maker(targets)
    name = targets.name
    if kind is None:
        return plain if name is None or "output" not in assigned else partial(_guessed, plain, name)
    if kind == "none":
        return plain
    needed = "logits" if kind == "sequence" and "logits" in assigned else "output"
    there = {needed: needed in assigned, "target": name is not None}
    if missing := " and ".join(f"`{name}`" for name, found in there.items() if not found):
        raise UsageError(
            f"--output {kind} is made of `{needed}` and `target`; the cell never assigns {missing}"
            + _choose(targets)
        )
    assert name is not None
    return partial(_MAKERS[kind], name)


def _choose(targets: Targets) -> str:
    """The names to set, if the target is not clear."""
    if not targets.possible or targets.name is not None:
        return ""
    ways = " or ".join(f"`target = {name}`" for name in targets.possible)
    return f". Which part of the batch is the target is not clear here: write {ways} into the cell"


class CellOutput(SimpleNamespace):
    """All that a body left, if it is no kind of output that metrics know."""

    _advice = "Let the cell leave `output` and `target` (or `targets`), or leave the metric out"


def _plain_maker(targets: Targets) -> MakeOutput:
    """Make a class for each body, as metrics check the fields of only the first output of a class."""
    kind = type("CellOutput", (CellOutput,), {"_advice": CellOutput._advice + _choose(targets)})
    # Not `weight`: metrics would take it for a number of samples.
    return lambda values: kind(**{name: value for name, value in values.items() if name != "weight"})


def _guessed(plain: MakeOutput, name: str, values: Values) -> Any:
    """Guess the kind as `.loss(fn)` does: class numbers have one dimension less than their scores."""
    output, targets = values.get("output"), values.get(name)
    countable = getattr(targets, "ndim", 1) > 0  # a single number is not a target for samples
    if output is None or targets is None or "loss" not in values or not countable:
        return plain({**values, "targets": targets})
    return kind_of(output, targets)(values["loss"], output, targets)


def _made(kind: Callable[..., Any]) -> Callable[[str, Values], Any]:
    return lambda name, values: kind(values.get("loss"), values.get("output"), values.get(name))


def _sequence(name: str, values: Values) -> SequenceOutput:
    logits = values["logits"] if "logits" in values else values.get("output")
    ignored = values.get("ignore_index", -100)
    return SequenceOutput(values.get("loss"), logits, values.get(name), values.get("predictions"), ignored)  # type: ignore[arg-type]


_MAKERS: dict[str, Callable[[str, Values], Any]] = {
    "classification": _made(ClassificationOutput),
    "regression": _made(RegressionOutput),
    "multilabel": _made(MultiLabelClassificationOutput),
    "sequence": _sequence,
}
