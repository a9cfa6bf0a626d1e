"""How much of what was due was answered."""

from __future__ import annotations

from .base import Floats
from .class_counts import share
from .class_shares import ShareOfClasses


class Recall(ShareOfClasses):
    """Of the targets of a class, the share that was answered with it, in percent; from the epoch's counts.

    Made by `binary`, `multiclass` or `multilabel`, as in Burn. `Recall()` is `multiclass()`, the mean
    accuracy per class (balanced accuracy), where every class was due or answered at least once.

    Averages (`reduction`): "macro" is the mean over the classes, of which those that neither a target nor an
    answer named are left out; "micro" counts all classes as one; "weighted" is the mean weighted by how often
    each class was due. A class that was never due has recall 0 (as in scikit-learn and Burn).

    A step's weight is its number of targets. The epoch's value comes from counts and not from these.

    >>> Recall.multilabel(0.5, "micro").name
    'Recall @ Threshold(0.5) [Micro]'
    """

    title = "Recall"

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Right answers of those that were due."""
        return share(right, due)
