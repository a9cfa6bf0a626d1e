"""Metrics: one file each. Write your own by subclassing `Metric` (see `base.py`)."""

from .accuracy import Accuracy
from .base import AnyMetric, Metric, Ratio, Reading, StepContext, TextMetric
from .cpu import CpuMemory, CpuUse
from .cuda import CudaMetric
from .grad_norm import GradNorm
from .group import MetricGroup
from .iteration_speed import IterationSpeed
from .learning_rate import LearningRate
from .loss import Loss
from .top_k_accuracy import TopKAccuracy

__all__ = [
    "Accuracy",
    "AnyMetric",
    "CpuMemory",
    "CpuUse",
    "CudaMetric",
    "GradNorm",
    "IterationSpeed",
    "LearningRate",
    "Loss",
    "Metric",
    "MetricGroup",
    "Ratio",
    "Reading",
    "StepContext",
    "TextMetric",
    "TopKAccuracy",
]
