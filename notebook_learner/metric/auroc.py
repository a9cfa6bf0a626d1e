"""How reliably positives get higher scores than negatives."""

from __future__ import annotations

from .ranking import Ranking, ScoreRanks


class AUROC(Ranking):
    """The area under the ROC curve, in percent: how often a positive has a higher score than a negative.

    Made by `binary`, `multiclass` (each class against the rest) or `multilabel`; `AUROC()` is `multiclass()`.
    A tie counts half. The value is exact: pairs are counted in whole numbers. (torchmetrics passes logits
    through a sigmoid, in which high ones become equal at 1.)

    An epoch has a value; single steps have none. A class without positives or without negatives has no area
    and is left out of the mean. If no class has an area, or a score is NaN, the epoch's value is NaN.
    Averages (`reduction`): "macro" is the mean over the classes, "micro" takes all pairs of sample and class
    as one class, "weighted" weighs classes by their positives.

    It keeps the scores of the epoch on the device (4 bytes per sample and class). Captured states share them,
    so a keyframe adds only the scores since the one before. A checkpoint inside an epoch holds all of them.

    >>> AUROC.multiclass().name, AUROC.binary().name
    ('AUROC [Macro]', 'AUROC')
    """

    title = "AUROC"

    def area(self, ranks: ScoreRanks) -> float:
        """The share of pairs in the right order, out of all pairs of a positive and a negative."""
        pairs = ranks.positives * (ranks.total - ranks.positives)
        if not pairs:
            return float("nan")
        # Among all answers, positives also pair with each other: this adds positives**2 in any order.
        won_twice = int((ranks.positive * (2 * ranks.below + ranks.tied)).sum()) - ranks.positives**2
        return won_twice / (2 * pairs)
