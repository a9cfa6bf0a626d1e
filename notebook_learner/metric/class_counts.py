"""Metrics that count each class's right and wrong answers: Precision, Recall, F-beta and Dice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Self

from ..errors import OutputError, StateError
from .base import Counted, Floats, Input
from .decisions import Decision, Threshold, TopK

Reduction = Literal["micro", "macro", "weighted"]
REDUCTIONS = ("micro", "macro", "weighted")


@dataclass(slots=True)
class KeptClasses:
    """What a step leaves: its counts on the device, their number of classes, and its number of targets."""

    counts: Tensor
    classes: int
    targets: int


class ClassCounts(Counted):
    """A formula of how often each class was right, was the answer, and was the target. Subclasses give
    `formula`.

    A step counts on the device. The whole numbers are read once for each block, and the host computes the
    formula in double precision. The epoch's value is the formula of the summed counts, which differs from the
    mean of the batches' values. A step's weight is its number of targets.
    """

    higher_is_better = True
    needs = ("output", "targets")
    scale: ClassVar[float] = 100.0
    first = 0
    """The first class that counts."""

    def __init__(self, decision: Decision, reduction: Reduction, input: Input | None) -> None:
        super().__init__(input=input)
        check_reduction(type(self).__name__, reduction)
        self.decision = decision
        self.reduction = reduction
        self._classes: int | None = None

    @property
    def suffix(self) -> str:
        """The part of the name that says how answers are made and averaged. Yes and no are not averaged."""
        binary = isinstance(self.decision, Threshold) and not self.decision.labels
        return f"@ {self.decision.text}" + ("" if binary else f" [{self.reduction.capitalize()}]")

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Return the value, from 0 to 1, for these counts, elementwise."""
        raise NotImplementedError(f"{type(self).__name__} must define formula(right, said, due)")

    def keep(self, item: Any) -> KeptClasses:
        """Count on the device, without a wait for the result."""
        counts, classes = self.decision.counts(item.output, item.targets)
        if classes != self._classes:
            self._begin(classes)
        return KeptClasses(counts, classes, item.targets.numel())

    def count(self, kept: Sequence[KeptClasses]) -> Floats:
        """Return each step's table of counts, with its number of targets at the end of the row."""
        if not kept:
            return np.empty((0, 0))
        tables = self.decision.tables(_fetched([each.counts for each in kept]), kept[0].classes)
        rows = tables[:, :, self.first :].reshape(len(kept), -1)
        return np.column_stack([rows, [each.targets for each in kept]])

    def score(self, counts: Floats) -> Floats:
        """Return one number for each table of counts."""
        right, said, due = np.moveaxis(_table(counts), -2, 0)
        if self.reduction == "micro":
            return self.scale * self.formula(right.sum(-1), said.sum(-1), due.sum(-1))
        scores = self.formula(right, said, due)
        weights = due if self.reduction == "weighted" else ((said + due) > 0).astype(np.float64)
        with np.errstate(invalid="ignore"):
            return np.asarray(self.scale * (scores * weights).sum(-1) / weights.sum(-1))

    def weights(self, counts: Floats) -> Floats:
        """Return the numbers of targets."""
        return counts[..., -1]

    def per_class(self) -> list[float]:
        """Return the value of each class, over the epoch's steps that were read so far."""
        if self._sums is None:
            return []
        values: list[float] = (self.scale * self.formula(*_table(self._sums))).tolist()
        return values

    def reset(self) -> None:
        """Forget the counts."""
        super().reset()
        self._classes = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from saved counts."""
        self._sums = checked_counts(self.name, state["counts"])
        self._classes = self._known

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another one counted (its `state_dict`) on other samples: the sum of the counts."""
        theirs = checked_counts(self.name, state["counts"])
        if theirs is not None:
            self._sums = theirs if self._sums is None else self._sums + theirs
        self._classes = self._known

    @property
    def _known(self) -> int | None:
        """The number of classes in the epoch's counts."""
        return None if self._sums is None else len(self._sums) // 3 + self.first

    def _begin(self, classes: int) -> None:
        if self._classes is not None:
            raise OutputError(
                f"{self.name} counted {self._classes} classes in this epoch so far, but this output has "
                f"{classes}; give every step an output with the same classes"
            )
        self._classes = classes


def _fetched(counts: Sequence[Tensor]) -> Floats:
    """One row for each step, in one transfer."""
    last = counts[-1].device
    # A step may have run on another device than the others: the model moved.
    rows = torch.stack([each if each.device == last else each.to(last) for each in counts])
    numbers: Floats = rows.cpu().numpy().astype(np.float64)
    return numbers


def _table(counts: Floats) -> Floats:
    """Rows RIGHT, SAID and TRUE, without the number of targets."""
    return counts[..., :-1].reshape(*counts.shape[:-1], 3, -1)


def check_reduction(metric: str, reduction: str) -> None:
    """Raise if it is not a known reduction."""
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"{metric}(reduction={reduction!r}): choose one of {', '.join(map(repr, REDUCTIONS))}"
        )


def checked_counts(metric: str, counts: Any) -> Floats | None:
    """The counts of a state, if it holds some: the file may come from another version, or be made by hand."""
    if counts is None:
        return None
    numbers = isinstance(counts, list) and all(type(each) in (int, float) and each >= 0 for each in counts)
    if not numbers or len(counts) < 4 or len(counts) % 3 != 1:
        raise StateError(f"the state of {metric} holds no table of counts")
    return np.array(counts, dtype=np.float64)


def share(part: Floats, whole: Floats) -> Floats:
    """The quotient, and 0 for 0 of 0, as in scikit-learn and Burn.

    >>> share(np.array([1.0, 0.0]), np.array([4.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=np.asarray(whole > 0))


class ShareOfClasses(ClassCounts):
    """Right answers out of a total. Subclasses give `title` and `formula`."""

    title: ClassVar[str]
    unit = "%"

    def __init__(
        self,
        decision: Decision | None = None,
        reduction: Reduction = "macro",
        *,
        input: Input | None = None,
    ) -> None:
        decision = decision or TopK(self.title, 1, None, None)
        super().__init__(decision, reduction, input)
        self.name = f"{self.title} {self.suffix}"

    @classmethod
    def binary(cls, threshold: float, *, pad_token: int | None = None, input: Input | None = None) -> Self:
        """Make it for yes and no: one score per target of 0 or 1.

        Args:
            threshold: above it the answer is yes: 0.0 for logits, 0.5 for probabilities.
            pad_token: targets equal to it are left out.
            input: takes `output` and `targets` out of another output.
        """
        return cls(Threshold(cls.title, threshold, False, pad_token), "micro", input=input)

    @classmethod
    def multiclass(
        cls,
        top_k: int = 1,
        reduction: Reduction = "macro",
        *,
        pad_token: int | None = None,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> Self:
        """Make it for one class among several: a score per class, and targets that are class indices.

        Args:
            top_k: this many best-scored classes are answers, and all of them count (as in Burn).
            reduction: how the classes' values become one number.
            pad_token: targets equal to it are left out.
            class_dim: the dimension of the classes, if dimension 1 and the last one both fit.
            input: takes `output` and `targets` out of another output.
        """
        return cls(TopK(cls.title, top_k, pad_token, class_dim), reduction, input=input)

    @classmethod
    def multilabel(
        cls,
        threshold: float,
        reduction: Reduction = "macro",
        *,
        pad_token: int | None = None,
        input: Input | None = None,
    ) -> Self:
        """Make it for several labels at once: scores and targets of 0 or 1, with the labels in dimension 1.

        Args:
            threshold: above it the answer is yes: 0.0 for logits, 0.5 for probabilities.
            reduction: how the labels' values become one number.
            pad_token: targets equal to it are left out.
            input: takes `output` and `targets` out of another output.
        """
        return cls(Threshold(cls.title, threshold, True, pad_token), reduction, input=input)


class Precision(ShareOfClasses):
    """The share of right answers, out of the answers that named a class, in percent; from the epoch's counts.

    Made by `binary`, `multiclass` or `multilabel`, as in Burn. `Precision()` is `multiclass()`.

    Averages (`reduction`): "macro" is the mean over the classes that at least one target or answer named;
    "micro" counts all classes as one; "weighted" is the mean weighted by how often each class was the target.
    A class that was never the answer has precision 0 (as in scikit-learn and Burn).

    A step's weight is its number of targets. The epoch's value comes from counts and not from these weights.

    >>> Precision.multiclass().name
    'Precision @ TopK(1) [Macro]'
    >>> Precision.binary(0.0).name
    'Precision @ Threshold(0)'
    """

    title = "Precision"

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Return right answers divided by answers."""
        return share(right, said)


class Recall(ShareOfClasses):
    """The share of right answers, out of the targets of a class, in percent; from the epoch's counts.

    Made by `binary`, `multiclass` or `multilabel`, as in Burn. `Recall()` is `multiclass()`. It is the mean
    accuracy per class (balanced accuracy), if every class was a target or an answer at least once.

    Averages (`reduction`): "macro" is the mean over the classes that at least one target or answer named;
    "micro" counts all classes as one; "weighted" is the mean weighted by how often each class was the target.
    A class that was never the target has recall 0 (as in scikit-learn and Burn).

    A step's weight is its number of targets. The epoch's value comes from counts and not from these weights.

    >>> Recall.multilabel(0.5, "micro").name
    'Recall @ Threshold(0.5) [Micro]'
    """

    title = "Recall"

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Return right answers divided by targets."""
        return share(right, due)


class FBetaScore(ClassCounts):
    """The weighted harmonic mean of precision and recall, in percent; from the epoch's counts.

    `beta` is how many times as important recall is: 1 gives the F1 score, 2 gives more weight to recall, 0.5
    to precision. Made by `binary`, `multiclass` or `multilabel`, as in Burn; `FBetaScore()` is the macro F1
    score of `multiclass(1.0)`. Averages and weights are those of `Precision`.

    >>> FBetaScore.multiclass(1.0).name
    'FBetaScore (1) @ TopK(1) [Macro]'
    """

    unit = "%"

    def __init__(
        self,
        beta: float = 1.0,
        decision: Decision | None = None,
        reduction: Reduction = "macro",
        *,
        input: Input | None = None,
    ) -> None:
        if not beta > 0:
            raise ValueError(
                f"FBetaScore(beta={beta}): recall is beta times as important, so beta is above 0"
            )
        decision = decision or TopK("FBetaScore", 1, None, None)
        super().__init__(decision, reduction, input)
        self.beta = beta
        self.name = f"FBetaScore ({beta:g}) {self.suffix}"

    @classmethod
    def binary(
        cls, beta: float, threshold: float, *, pad_token: int | None = None, input: Input | None = None
    ) -> Self:
        """Make it for yes and no: one score per target of 0 or 1; arguments as in `Precision.binary`."""
        return cls(beta, Threshold("FBetaScore", threshold, False, pad_token), "micro", input=input)

    @classmethod
    def multiclass(
        cls,
        beta: float,
        top_k: int = 1,
        reduction: Reduction = "macro",
        *,
        pad_token: int | None = None,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> Self:
        """Make it for one class among several; arguments as in `Precision.multiclass`."""
        return cls(beta, TopK("FBetaScore", top_k, pad_token, class_dim), reduction, input=input)

    @classmethod
    def multilabel(
        cls,
        beta: float,
        threshold: float,
        reduction: Reduction = "macro",
        *,
        pad_token: int | None = None,
        input: Input | None = None,
    ) -> Self:
        """Make it for several labels at once; arguments as in `Precision.multilabel`."""
        return cls(beta, Threshold("FBetaScore", threshold, True, pad_token), reduction, input=input)

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Return `(1 + beta²)·right / (beta²·due + said)`, which is that mean."""
        square = self.beta**2
        return share((1 + square) * right, square * due + said)


class Dice(ClassCounts):
    """Twice the overlap of two masks, divided by the sum of their sizes: 0 to 1, from the epoch's counts of
    pixels.

    `output` has a score per class (`[batch, classes, height, width]`, or any number of dimensions) and
    `targets` class indices; the best-scored class of each pixel counts. Class 0 is taken as the background
    and left out. With a `threshold`, `output` and `targets` are masks, one per channel of dimension 1.

    It is the F1 score of the pixels (`FBetaScore`). Two empty masks give 1. Burn's Dice averages batches;
    here the pixels of the epoch are counted together. A step's weight is its number of pixels.

    Args:
        threshold: above it a pixel belongs to the mask: 0.0 for logits, 0.5 for probabilities.
        reduction: "micro" counts the pixels of all classes together, as Burn does; "macro" is the mean over
            the classes that occur.
        include_background: count class 0 like the others. With a threshold all channels count in any case.
        pad_token: target pixels equal to it are left out (255 in many data sets).
        class_dim: the dimension of the classes, if dimension 1 and the last one both fit.
        input: takes `output` and `targets` out of another output.

    >>> Dice().name, Dice(threshold=0.5, reduction="macro").name
    ('Dice', 'Dice [Macro]')
    """

    scale = 1.0

    def __init__(
        self,
        *,
        threshold: float | None = None,
        reduction: Reduction = "micro",
        include_background: bool = False,
        pad_token: int | None = None,
        class_dim: int | None = None,
        input: Input | None = None,
    ) -> None:
        decision = (
            TopK("Dice", 1, pad_token, class_dim)
            if threshold is None
            else Threshold("Dice", threshold, True, pad_token)
        )
        super().__init__(decision, reduction, input)
        self.first = 1 if threshold is None and not include_background else 0
        self.name = "Dice" if reduction == "micro" else f"Dice [{reduction.capitalize()}]"

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Return twice the overlap, divided by the sum of both sizes; 1 if both are empty."""
        sizes = said + due
        return np.divide(2 * right, sizes, out=np.ones(np.shape(sizes)), where=np.asarray(sizes > 0))
