"""What a paused step looks like: the batch, the samples, every layer, the optimizer, the memory.

In come a model, a batch and a function that takes the step; out goes one value, `Inspection`, that prints
itself. Whoever calls puts the training back: nothing here keeps a tensor of it.
"""

from __future__ import annotations

from .batch import BatchTensor
from .culprit import Culprit, trace_non_finite
from .inspection import Inspection
from .layers import Layer
from .look import look
from .memory import Memory
from .optimizer import Group, StateSize
from .pictures import Picture
from .samples import Sample
from .statistics import Histogram, Statistics
from .weights import Parameter

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
