"""The parameters one by one: their gradients, and how far one update moves them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .statistics import bring_over, values_of, wide


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; tied ones are one. A norm is None where there is nothing to take it of."""

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
        """How far one update moves it, in parts of its own size."""
        return ratio(self.update_norm, self.weight_norm)


def ratio(update: float | None, weight: float | None) -> float | None:
    """An update's norm over the weights'; None where one is unknown, or there are no weights to speak of."""
    return None if update is None or not weight else update / weight


class Norms:
    """Norms on their devices, read together."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._norms: list[Tensor] = []

    def add(self, name: str, tensor: Tensor | None) -> None:
        """The norm of a tensor, unless it has none: whole numbers are not trained."""
        if tensor is None or not (tensor.is_floating_point() or tensor.is_complex()):
            return
        values = values_of(tensor)
        if values is not None:
            self._names.append(name)
            self._norms.append(torch.linalg.vector_norm(_plain(values), dtype=wide(values.device)))

    def read(self) -> dict[str, float]:
        """All of them, by name."""
        return {name: float(norm) for name, norm in zip(self._names, bring_over(self._norms), strict=True)}


def _plain(values: Tensor) -> Tensor:
    return values.float() if values.element_size() < 4 else values


class Weights:
    """The parameters of a model in one step: `after_step()`, then `before_update()` and `after_update()`.

    The copy that the update is measured against lies in the host's memory, not on a device that may be full.
    """

    def __init__(self, model: nn.Module, scale: float) -> None:
        self._model = model
        self._parameters: dict[str, nn.Parameter] = {}
        self._scale = scale
        self._copies: dict[str, Tensor] = {}
        self._weights: dict[str, float] = {}
        self._gradients: dict[str, float] = {}
        self._updates: dict[str, float] = {}

    @torch.no_grad()
    def after_step(self) -> None:
        """Measure weights and gradients."""
        weights, gradients = Norms(), Norms()
        # Not before the step, which gives a lazy parameter its shape.
        named = self._model.named_parameters()
        self._parameters = {name: parameter for name, parameter in named if not is_lazy(parameter)}
        for name, parameter in self._parameters.items():
            weights.add(name, parameter)
            gradients.add(name, parameter.grad)
        self._weights = weights.read()
        self._gradients = {name: norm / self._scale for name, norm in gradients.read().items()}

    def before_update(self) -> None:
        """Copy what the optimizer may change."""
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and name in self._weights:
                self._copies[name] = parameter.detach().to("cpu", copy=True)

    @torch.no_grad()
    def after_update(self) -> None:
        """Measure how far the weights moved, a tensor at a time."""
        updates = Norms()
        for name in list(self._copies):
            now = self._parameters[name].detach()
            updates.add(name, _plain(now) - _plain(self._copies.pop(name).to(now.device)))
        self._updates = updates.read()

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
    """The norm of several tensors as one; None if one is unknown, or there are none.

    >>> together({"weight": 3.0, "bias": 4.0})
    5.0
    """
    known = [norm for norm in norms.values() if norm is not None]
    if not known or len(known) < len(norms):
        return None
    return math.hypot(*known)
