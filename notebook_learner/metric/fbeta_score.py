"""Precision and recall in one number."""

from __future__ import annotations

from typing_extensions import Self

from .base import Floats, Input
from .class_counts import ClassCounts, Reduction, share
from .decisions import Decision, Threshold, TopK


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
