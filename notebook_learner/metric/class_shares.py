"""How Precision and Recall are made: both are a share of right answers, out of different totals."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import Self

from .base import Input
from .class_counts import ClassCounts, Reduction
from .decisions import Decision, Threshold, TopK


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
