"""How precise the best-scored answers are, over all recalls."""

from __future__ import annotations

import torch

from .ranking import Ranking, ScoreRanks
from .tensors import exact_dtype


class AUCPR(Ranking):
    """The area under the precision-recall curve as average precision, in percent.

    `Σ (recall_n - recall_{n-1})·precision_n` over all thresholds, as in scikit-learn and Burn, without
    trapezoids. Made by `binary`, `multiclass` (each class against the rest) or `multilabel`; `AUCPR()` is
    `multiclass()`.

    An epoch has a value; single steps have none. A class without positives has no area and is left out of the
    mean. If no class has an area, or a score is NaN, the epoch's value is NaN. It averages and keeps scores
    as `AUROC` does.

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
        # Summed with a zero for each score that no positive has: torch adds by place. So the last bit of the
        # sum is the same as in runs that began with earlier versions.
        rises = ranks.ordered.diff() != 0
        places = torch.cat([rises.new_zeros(1), rises]).cumsum(0)
        terms = precision.new_zeros(int(places[-1]) + 1)
        terms[len(terms) - 1 - places[ranks.below]] = ranks.positive.to(exact) * precision
        return float(terms.sum()) / ranks.positives
