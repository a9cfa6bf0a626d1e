"""Breakpoints: conditions that pause the training before the update of the step that meets them.

A condition receives a moment of a step, or the values of metrics. It returns a text that says why to stop, or
nothing. It changes nothing of what it looks at.
"""

from .base import Asked, Condition, Found, FromMetrics, Measured, Moment, Planned
from .breakpoints import Breakpoint, Breakpoints, When
from .conditions import AtStep, DeadUnits, EveryNSteps, GradNorm, LossSpike, MetricIs, NonFinite, UpdateRatio

__all__ = [
    "Asked",
    "AtStep",
    "Breakpoint",
    "Breakpoints",
    "Condition",
    "DeadUnits",
    "EveryNSteps",
    "Found",
    "FromMetrics",
    "GradNorm",
    "LossSpike",
    "Measured",
    "MetricIs",
    "Moment",
    "NonFinite",
    "Planned",
    "UpdateRatio",
    "When",
]
