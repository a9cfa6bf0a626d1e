"""How surely positives are ranked above negatives."""

from __future__ import annotations

from .ranking import Ranking, ScoreRanks


class AUROC(Ranking):
    """The area under the ROC curve, in percent: how often a positive has a higher score than a negative.

    Made by `binary`, `multiclass` (each class against the rest) or `multilabel`; `AUROC()` is
    `multiclass()`. Ties count half. It is exact: pairs are counted in whole numbers. (torchmetrics puts
    logits through a sigmoid, where sure ones tie at 1.)

    An epoch has a value, steps have none. A class without positives or without negatives has no area and is
    left out of the mean; where no class has one, or a score is NaN, the epoch's value is NaN. Averages
    (`reduction`): "macro" is the mean over the classes, "micro" takes all pairs of sample and class as one,
    "weighted" weighs classes by their positives.

    It keeps the scores of the epoch on the device (4 bytes per sample and class). Captured states share them,
    so a keyframe takes the scores since the one before; a checkpoint inside an epoch holds them all.

    >>> AUROC.multiclass().name, AUROC.binary().name
    ('AUROC [Macro]', 'AUROC')
    """

    title = "AUROC"

    def area(self, ranks: ScoreRanks) -> float:
        """Pairs in the right order, of all pairs of a positive and a negative."""
        pairs = ranks.positives * (ranks.total - ranks.positives)
        if not pairs:
            return float("nan")
        # Among all answers positives meet each other, too: that makes positives**2, however they are ordered.
        won_twice = int((ranks.positive * (2 * ranks.below + ranks.tied)).sum()) - ranks.positives**2
        return won_twice / (2 * pairs)
