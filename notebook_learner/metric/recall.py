"""The share of right answers, out of the targets of each class."""

from __future__ import annotations

from .base import Floats
from .class_counts import share
from .class_shares import ShareOfClasses


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
