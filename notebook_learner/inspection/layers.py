"""A row for every parameter and every layer: gradients, outputs, and how far an update moves weights."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .module_hooks import ModuleWatch, is_row, own_parameters
from .statistics import (
    Both,
    Histogram,
    Measurements,
    Rows,
    Statistics,
    in_matrices,
    read,
    rows_of,
    values_in,
    wide,
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; tied ones count as one. A norm is None if there are no values for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    elements: int
    trains: bool
    weight_norm: float | None = None
    gradient_norm: float | None = None
    update_norm: float | None = None

    @property
    def update_ratio(self) -> float | None:
        """The norm of one update, relative to the parameter's own norm."""
        return ratio(self.update_norm, self.weight_norm)


def ratio(update: float | None, weight: float | None) -> float | None:
    """An update's norm over the weights' norm; None if one is unknown, or the weights' norm is zero."""
    return None if update is None or not weight else update / weight


def norms(named: Mapping[str, Tensor]) -> dict[str, float]:
    """The norms of tensors, except integer tensors, which are not trained."""
    parts = {name: values for name, tensor in _trained(named).items() for values in values_in([tensor])}
    return _norms_of([*parts], rows_of([*parts.values()], _norm))


def _trained(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: one for name, one in named.items() if one.is_floating_point() or one.is_complex()}


def _norms_of(names: Sequence[str], rows: Rows) -> dict[str, float]:
    found: dict[str, float] = {}
    for at, (norm,) in zip(*read(rows), strict=True):
        known = found.get(names[at])
        found[names[at]] = float(norm) if known is None else math.hypot(known, norm)
    return found


def _norm(values: Tensor) -> Tensor:
    values = values.abs() if values.is_complex() else _plain(values)
    norm: Tensor = torch.linalg.vector_norm(values, dim=1, keepdim=True, dtype=wide(values.device))
    return norm


def _plain(values: Tensor) -> Tensor:
    return values.float() if values.element_size() < 4 else values


class Weights:
    """The parameters of a model in one step: `after_step()`, then `before_update()` and `after_update()`. If
    the step moves the weights itself: `before_update()`, `after_step()` and `after_update()`.

    The copy from before the update lies in the host's memory, because the device may be full.
    """

    def __init__(self, model: nn.Module, scale: float) -> None:
        self._model = model
        self._parameters: dict[str, nn.Parameter] = {}
        self._scale = scale
        self._copies: list[Tensor] = []
        self._weights: dict[str, float] = {}
        self._gradients: dict[str, float] = {}
        self._updates: dict[str, float] = {}

    def after_step(self) -> None:
        """Measure weights and gradients."""
        # Not before the step: only the step gives a lazy parameter its shape.
        self._find()
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        self._gradients = {name: norm / self._scale for name, norm in norms(gradients).items()}

    def _find(self) -> None:
        if not self._parameters:
            named = self._model.named_parameters()
            self._parameters = {name: parameter for name, parameter in named if not is_lazy(parameter)}
            self._weights = norms(self._parameters)

    def _moving(self) -> dict[str, Tensor]:
        moving = {name: parameter for name, parameter in self._parameters.items() if parameter.requires_grad}
        return {name: parameter.detach() for name, parameter in moving.items() if name in self._weights}

    def before_update(self) -> None:
        """Copy the parameters that the optimizer may change."""
        self._find()
        in_matrices([*self._moving().values()], lambda _, now: self._copies.append(now.to("cpu", copy=True)))

    def after_update(self) -> None:
        """Measure how far the weights moved."""
        moved, rows, before = self._moving(), Rows(), iter(self._copies)

        def measure(places: list[int], now: Tensor) -> None:
            rows.append((places, _norm(_plain(now) - _plain(next(before).to(now.device)))))

        in_matrices([*moved.values()], measure)
        self._copies = []
        self._updates = _norms_of([*moved], rows)

    def rows(self) -> dict[int, Parameter]:
        """A row for every parameter, by the parameter's `id`."""
        return {id(parameter): self._row(name, parameter) for name, parameter in self._parameters.items()}

    def _row(self, name: str, parameter: nn.Parameter) -> Parameter:
        return Parameter(
            name,
            tuple(parameter.shape),
            str(parameter.dtype).removeprefix("torch."),
            parameter.numel(),
            parameter.requires_grad,
            self._weights.get(name),
            self._gradients.get(name),
            self._updates.get(name),
        )


def together(norms: Mapping[str, float | None]) -> float | None:
    """The norm of several tensors as one; None if one is unknown or there are no tensors.

    >>> together({"weight": 3.0, "bias": 4.0})
    5.0
    """
    known = [norm for norm in norms.values() if norm is not None]
    if not known or len(known) < len(norms):
        return None
    return math.hypot(*known)


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


_STATISTICS = ("mean", "std", "min", "max", "zeros", "nan", "inf")
_COLUMNS = (
    *("kind", "parameters", "calls", "shape", *_STATISTICS),
    *("gradient_norm", "weight_norm", "update_ratio", "flags"),
)


def to_pandas(layers: Sequence[Layer]) -> Any:
    """Return a DataFrame with a row for each layer. `flags` is one text; unknown values are missing."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise ImportError(
            "inspection.to_pandas() needs pandas, which is not installed; `pip install pandas`, or take the "
            "rows of `inspection.layers`"
        ) from error
    names = pandas.Index([layer.name for layer in layers], name="layer", dtype=object)
    return pandas.DataFrame([_flat(layer) for layer in layers], index=names, columns=list(_COLUMNS))


def _flat(layer: Layer) -> dict[str, Any]:
    values = {name: getattr(layer.activation, name, None) for name in _STATISTICS}
    values |= {name: getattr(layer, name) for name in _COLUMNS if name not in values}
    return values | {"flags": ", ".join(layer.flags)}
