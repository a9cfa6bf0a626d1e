"""How much of what was answered is right."""

from __future__ import annotations

from .base import Floats
from .class_counts import share
from .class_shares import ShareOfClasses


class Precision(ShareOfClasses):
    """Of the answers that named a class, the share that was right, in percent; from the epoch's counts.

    Made by `binary`, `multiclass` or `multilabel`, as in Burn. `Precision()` is `multiclass()`.

    Averages (`reduction`): "macro" is the mean over the classes, of which those that neither a target nor an
    answer named are left out; "micro" counts all classes as one; "weighted" is the mean weighted by how often
    each class was due. A class that was never answered has precision 0 (as in scikit-learn and Burn).

    A step's weight is its number of targets. The epoch's value comes from counts and not from these.

    >>> Precision.multiclass().name
    'Precision @ TopK(1) [Macro]'
    >>> Precision.binary(0.0).name
    'Precision @ Threshold(0)'
    """

    title = "Precision"

    def formula(self, right: Floats, said: Floats, due: Floats) -> Floats:
        """Right answers of those given."""
        return share(right, said)
