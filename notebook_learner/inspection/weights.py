"""A row for every parameter: its gradient, and how far one update moves it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .statistics import Rows, in_matrices, read, rows_of, values_in, wide


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
    """The parameters of a model in one step: `after_step()`, then `before_update()` and `after_update()`.

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
        named = self._model.named_parameters()
        self._parameters = {name: parameter for name, parameter in named if not is_lazy(parameter)}
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        self._weights = norms(self._parameters)
        self._gradients = {name: norm / self._scale for name, norm in norms(gradients).items()}

    def _moving(self) -> dict[str, Tensor]:
        moving = {name: parameter for name, parameter in self._parameters.items() if parameter.requires_grad}
        return {name: parameter.detach() for name, parameter in moving.items() if name in self._weights}

    def before_update(self) -> None:
        """Copy the parameters that the optimizer may change."""
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
