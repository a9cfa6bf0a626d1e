"""How far two masks overlap."""

from __future__ import annotations

import numpy as np

from .base import Floats, Input
from .class_counts import ClassCounts, Reduction
from .decisions import Threshold, TopK


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
