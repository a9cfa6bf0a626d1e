"""A row for every layer: its output, its gradients, and how far an update moves its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from .module_hooks import ModuleWatch, is_row, own_parameters
from .statistics import Both, Histogram, Measurements, Statistics
from .weights import Parameter, ratio, together


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: a module without parts, or a module that has parts and its own parameters.

    Attributes:
        name: as in `model.named_modules()`; empty for the model itself.
        parameters: the number of values in its own parameters.
        calls: how often it ran in the step; 0 if it was not called, or its hook did not run.
        shape: the shape of the first floating tensor of its last output.
        activation: that tensor's values.
        gradient: the gradients of its own parameters, as one set of values.
        update_ratio: the norm of its update over the norm of its weights, if an update was tried.
        flags: warnings: NaN, inf, dead (every output is zero), no gradient, zero gradient, frozen.
    """

    name: str
    kind: str
    parameters: int
    calls: int
    shape: tuple[int, ...] | None
    activation: Statistics | None
    activations: Histogram | None
    gradient: Statistics | None
    gradients: Histogram | None
    weight_norm: float | None
    update_ratio: float | None
    flags: tuple[str, ...]

    @property
    def gradient_norm(self) -> float | None:
        """The norm of the gradients of the layer's own parameters."""
        return None if self.gradient is None else self.gradient.norm


def describe_layers(
    model: nn.Module, watch: ModuleWatch, parameters: Mapping[int, Parameter], *, scale: float, failed: bool
) -> tuple[Layer, ...]:
    """A row for every layer that ran or has parameters."""
    modules = [(name, module) for name, module in model.named_modules() if is_row(module)]
    outputs, returned = watch.measured.answers(), Measurements()
    own = [own_parameters(module) for _, module in modules]
    returned.ask([[p.grad for p in parameters if p.grad is not None] for parameters in own])
    rows = (
        _row(name, module, watch, parameters, outputs, _scaled(gradient, 1 / scale), failed)
        for (name, module), gradient in zip(modules, returned.answers(), strict=True)
    )
    return tuple(row for row in rows if row.parameters or row.calls)


def _scaled(both: Both, factor: float) -> Both:
    if both is None or factor == 1:
        return both
    statistics, histogram = both
    return statistics.scaled(factor), histogram and histogram.scaled(factor)


def _row(
    name: str,
    module: nn.Module,
    watch: ModuleWatch,
    parameters: Mapping[int, Parameter],
    outputs: Sequence[Both],
    gradient: Both,
    failed: bool,
) -> Layer:
    own = [parameters[id(p)] for p in own_parameters(module) if id(p) in parameters]
    trained = [parameter for parameter in own if parameter.trains]
    weight = together({p.name: p.weight_norm for p in trained})
    update = together({p.name: p.update_norm for p in trained})
    activation = watch.activations.get(name)
    output = outputs[activation.values] if activation and activation.values is not None else None
    statistics, spread = output or (None, None)
    returned, returned_spread = gradient or (None, None)
    return Layer(
        name=name,
        kind=type(module).__name__,
        parameters=sum(parameter.elements for parameter in own),
        calls=watch.calls.get(name, 0),
        shape=None if activation is None else activation.shape,
        activation=statistics,
        activations=spread,
        gradient=returned,
        gradients=returned_spread,
        weight_norm=together({p.name: p.weight_norm for p in own}),
        update_ratio=ratio(update, weight),
        flags=_flags(own, statistics, returned, failed),
    )


def _flags(
    own: list[Parameter], output: Statistics | None, gradient: Statistics | None, failed: bool
) -> tuple[str, ...]:
    seen = [one for one in (output, gradient) if one is not None]
    trains = any(parameter.trains for parameter in own)
    flags = {
        "NaN": any(one.nan for one in seen),
        "inf": any(one.inf for one in seen),
        "dead": output is not None and output.zeros == 1,
        "no gradient": trains and gradient is None and not failed,
        "zero gradient": gradient is not None and gradient.zeros == 1,
        "frozen": bool(own) and not trains,
    }
    return tuple(name for name, holds in flags.items() if holds)
