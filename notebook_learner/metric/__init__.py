"""Metrics: one file each. Write your own by subclassing `Metric` (see `base.py`).

A metric takes the outputs of a step. It gives blocks of values, and one value for an epoch. An update never
waits for the device.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if _TYPE_CHECKING:
    from .accuracy import Accuracy, HammingScore, TopKAccuracy
    from .base import AccumulatedText, AnyMetric, Counted, Metric, Ratio, Reading, StepContext, TextMetric
    from .class_counts import Dice, FBetaScore, Precision, Recall
    from .confusion_matrix import ConfusionMatrix
    from .group import MetricGroup
    from .hardware import CpuMemory, CpuTemperature, CpuUse, CudaMetric, GpuReading
    from .images import MSSSIM, PSNR, SSIM
    from .number_errors import R2, RMSE, MeanAbsoluteError, MeanSquaredError
    from .prediction import Prediction
    from .ranking import AUCPR, AUROC
    from .sequences import BleuScore, CharErrorRate, Perplexity, RougeLScore, SequenceMetric, WordErrorRate
    from .step_values import DataWait, GradNorm, IterationSpeed, LearningRate, Loss, SamplesPerSecond
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
    "accuracy": "Accuracy HammingScore TopKAccuracy",
    "base": "AccumulatedText AnyMetric Counted Metric Ratio Reading StepContext TextMetric",
    "class_counts": "Dice FBetaScore Precision Recall",
    "confusion_matrix": "ConfusionMatrix",
    "group": "MetricGroup",
    "hardware": "CpuMemory CpuTemperature CpuUse CudaMetric GpuReading",
    "images": "MSSSIM PSNR SSIM",
    "number_errors": "MeanAbsoluteError MeanSquaredError R2 RMSE",
    "prediction": "Prediction",
    "ranking": "AUCPR AUROC",
    "sequences": "BleuScore CharErrorRate Perplexity RougeLScore SequenceMetric WordErrorRate",
    "step_values": "DataWait GradNorm IterationSpeed LearningRate Loss SamplesPerSecond",
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
