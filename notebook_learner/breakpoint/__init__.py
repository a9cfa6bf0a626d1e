"""Breakpoints: conditions that pause the training before the update of the step that meets them.

A condition receives a moment of a step, or the values of metrics. It returns a text that says why to stop, or
nothing. It changes nothing of what it looks at.
"""

from .base import Asked, Condition, Found, FromMetrics, Measured, Moment, Planned
from .breakpoints import Breakpoint, Breakpoints
from .dead_units import DeadUnits
from .function_condition import When
from .grad_norm import GradNorm
from .loss_spike import LossSpike
from .metric_is import MetricIs
from .non_finite import NonFinite
from .step_number import AtStep, EveryNSteps
from .update_ratio import UpdateRatio

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
