"""The share of right answers, out of the answers of each class."""

from __future__ import annotations

from .base import Floats
from .class_counts import share
from .class_shares import ShareOfClasses


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
