"""Metrics: one file each. Write your own by subclassing `Metric` (see `base.py`).

A metric takes the outputs of a step. It gives blocks of values, and one value for an epoch. An update never
waits for the device.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from .accuracy import Accuracy
    from .auc_pr import AUCPR
    from .auroc import AUROC
    from .base import AccumulatedText, AnyMetric, Counted, Metric, Ratio, Reading, StepContext, TextMetric
    from .bleu import BleuScore
    from .confusion_matrix import ConfusionMatrix
    from .cpu import CpuMemory, CpuTemperature, CpuUse
    from .cuda import CudaMetric, GpuReading
    from .data_wait import DataWait
    from .dice import Dice
    from .error_rates import CharErrorRate, WordErrorRate
    from .fbeta_score import FBetaScore
    from .grad_norm import GradNorm
    from .group import MetricGroup
    from .hamming_score import HammingScore
    from .iteration_speed import IterationSpeed
    from .learning_rate import LearningRate
    from .loss import Loss
    from .mean_absolute_error import MeanAbsoluteError
    from .mean_squared_error import RMSE, MeanSquaredError
    from .perplexity import Perplexity
    from .precision import Precision
    from .prediction import Prediction
    from .psnr import PSNR
    from .r2 import R2
    from .recall import Recall
    from .rouge import RougeLScore
    from .samples_per_second import SamplesPerSecond
    from .sequences import SequenceMetric
    from .ssim import MSSSIM, SSIM
    from .top_k_accuracy import TopKAccuracy
    from .torch_metric import TorchMetric

__all__ = [  # noqa: RUF022 - in plain order, which the test of public names requires
    "AUCPR",
    "AUROC",
    "AccumulatedText",
    "Accuracy",
    "AnyMetric",
    "BleuScore",
    "CharErrorRate",
    "ConfusionMatrix",
    "Counted",
    "CpuMemory",
    "CpuTemperature",
    "CpuUse",
    "CudaMetric",
    "DataWait",
    "Dice",
    "FBetaScore",
    "GpuReading",
    "GradNorm",
    "HammingScore",
    "IterationSpeed",
    "LearningRate",
    "Loss",
    "MSSSIM",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "MetricGroup",
    "PSNR",
    "Perplexity",
    "Precision",
    "Prediction",
    "R2",
    "RMSE",
    "Ratio",
    "Reading",
    "Recall",
    "RougeLScore",
    "SSIM",
    "SamplesPerSecond",
    "SequenceMetric",
    "StepContext",
    "TextMetric",
    "TopKAccuracy",
    "TorchMetric",
    "WordErrorRate",
]

_HOMES = {
    "accuracy": "Accuracy",
    "auc_pr": "AUCPR",
    "auroc": "AUROC",
    "base": "AccumulatedText AnyMetric Counted Metric Ratio Reading StepContext TextMetric",
    "bleu": "BleuScore",
    "confusion_matrix": "ConfusionMatrix",
    "cpu": "CpuMemory CpuTemperature CpuUse",
    "cuda": "CudaMetric GpuReading",
    "data_wait": "DataWait",
    "dice": "Dice",
    "error_rates": "CharErrorRate WordErrorRate",
    "fbeta_score": "FBetaScore",
    "grad_norm": "GradNorm",
    "group": "MetricGroup",
    "hamming_score": "HammingScore",
    "iteration_speed": "IterationSpeed",
    "learning_rate": "LearningRate",
    "loss": "Loss",
    "mean_absolute_error": "MeanAbsoluteError",
    "mean_squared_error": "RMSE MeanSquaredError",
    "perplexity": "Perplexity",
    "precision": "Precision",
    "prediction": "Prediction",
    "psnr": "PSNR",
    "r2": "R2",
    "recall": "Recall",
    "rouge": "RougeLScore",
    "samples_per_second": "SamplesPerSecond",
    "sequences": "SequenceMetric",
    "ssim": "MSSSIM SSIM",
    "top_k_accuracy": "TopKAccuracy",
    "torch_metric": "TorchMetric",
}


def __getattr__(name: str) -> _Any:
    """Load a metric's file when the metric is first used: most trainings need only two or three of them."""
    for home, names in _HOMES.items():
        if name in names.split():
            value = globals()[name] = getattr(_import_module(f".{home}", __name__), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
