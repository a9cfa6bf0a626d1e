"""Every metric that has values of its own, over the outputs of a classifier with three classes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torchmetrics.classification import MulticlassAUROC, MulticlassCohenKappa

from notebook_learner import metric as m


def numbers(item: Any) -> Any:
    return item.output[:, 0].float(), item.targets.float()


def images(item: Any) -> Any:
    """A picture a sample, large enough for five scales."""
    small = item.output.float().sigmoid()[:, None, None, :]
    right = F.one_hot(item.targets, 3).float()[:, None, None, :]
    return F.interpolate(small, (176, 176)), F.interpolate(right, (176, 176))


def labels(item: Any) -> Any:
    return item.output.sigmoid(), F.one_hot(item.targets, 3)


def tokens(item: Any) -> Any:
    """A sequence of five tokens a sample."""
    shifts = torch.arange(5)
    return (item.output.argmax(1)[:, None] + shifts) % 4, (item.targets[:, None] + 2 * shifts) % 4


def words(sequence: Any) -> str:
    return " ".join(str(int(token)) for token in sequence)


def whole_catalogue() -> list[Any]:
    texts = {"decode": words, "input": tokens}
    return [
        *(m.Loss(), m.Accuracy(), m.TopKAccuracy(2), m.Precision(), m.Recall(), m.FBetaScore(), m.Dice()),
        *(m.AUROC(), m.AUCPR(), m.Perplexity(), m.HammingScore(0.5, input=labels)),
        *(kind(input=numbers) for kind in (m.MeanAbsoluteError, m.MeanSquaredError, m.RMSE, m.R2)),
        *(kind(input=images) for kind in (m.PSNR, m.SSIM, m.MSSSIM)),
        *(kind(**texts) for kind in (m.CharErrorRate, m.WordErrorRate, m.BleuScore, m.RougeLScore)),
        m.TorchMetric(MulticlassCohenKappa(3), name="Kappa"),
        m.TorchMetric(MulticlassAUROC(3), name="Their AUROC"),
    ]
