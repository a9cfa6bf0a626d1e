"""Inspect a paused step: the batch, the samples, every layer, the optimizer, the memory.

Input: a model, a batch and a function that takes the step. Output: one value, `Inspection`, that prints as a
report. The caller restores the training. Nothing here keeps a tensor of it.
"""

from __future__ import annotations

from .batch import BatchTensor, Picture
from .culprit import Culprit, trace_non_finite
from .inspection import Inspection
from .layers import Layer, Parameter
from .look import look
from .memory import Memory
from .optimizer import Group, StateSize
from .samples import Sample
from .statistics import Histogram, Statistics

__all__ = [
    "BatchTensor",
    "Culprit",
    "Group",
    "Histogram",
    "Inspection",
    "Layer",
    "Memory",
    "Parameter",
    "Picture",
    "Sample",
    "StateSize",
    "Statistics",
    "look",
    "trace_non_finite",
]
