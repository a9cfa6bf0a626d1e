"""How pure the best-scored answers are, over all recalls."""

from __future__ import annotations

import torch

from .ranking import Ranking, ScoreRanks
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

    def area(self, ranks: ScoreRanks) -> float:
        """The mean precision at each positive."""
        if not ranks.positives:
            return float("nan")
        right = ranks.positives - (ranks.positive.cumsum(0) - ranks.positive)
        exact = exact_dtype(right.device)
        precision = right.to(exact) / (ranks.total - ranks.below).to(exact)
        # Summed with a zero for each score that no positive has: torch adds by place, and the last bit of the
        # sum stays what it was in runs that earlier versions began.
        rises = ranks.ordered.diff() != 0
        places = torch.cat([rises.new_zeros(1), rises]).cumsum(0)
        terms = precision.new_zeros(int(places[-1]) + 1)
        terms[len(terms) - 1 - places[ranks.below]] = ranks.positive.to(exact) * precision
        return float(terms.sum()) / ranks.positives
