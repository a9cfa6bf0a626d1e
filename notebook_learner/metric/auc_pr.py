"""How pure the best-scored answers are, over all recalls."""

from __future__ import annotations

import torch

from .ranking import Ranking, Ranks
from .tensors import exact_dtype


class AUCPR(Ranking):
    """The area under the precision-recall curve as average precision, in percent.

    `Σ (recall_n - recall_{n-1})·precision_n` over all thresholds, as in scikit-learn and Burn; no trapezoids.
    Made by `binary`, `multiclass` (each class against the rest) or `multilabel`; `AUCPR()` is
    `multiclass()`.

    An epoch has a value, steps have none. A class without positives has no area and is left out of the mean;
    where no class has one, or a score is NaN, the epoch's value is NaN. Averages and what it keeps are
    those of `AUROC`.

    >>> AUCPR.multilabel("micro").name
    'AUC-PR [Micro]'
    """

    title = "AUC-PR"

    def area(self, ranks: Ranks) -> float:
        """The mean precision at each positive."""
        if not ranks.positives:
            return float("nan")
        found = ranks.positive.flip(0)
        right = found.cumsum(0)
        answers = (ranks.positive + ranks.negative).flip(0).cumsum(0)
        exact = exact_dtype(found.device)
        precision = right.to(exact) / answers.to(exact)
        return float(torch.sum(found.to(exact) * precision)) / ranks.positives
