"""Cuts captured states into each rank's rows of every weight, and joins them again.

A state that leaves the ranks is always whole: it is the same as if one device had captured it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Size, Tensor

DIVIDED = ("model", "optimizer", "window")
"""The parts of a state of which each rank has its own rows."""


def piece_of(tensor: Tensor, rank: int, world: int) -> Tensor:
    """A rank's rows, distributed as by torch's `fully_shard`: the last ranks may have fewer rows, or no row.

    >>> [piece_of(torch.arange(5), rank, 4).tolist() for rank in range(4)]
    [[0, 1], [2, 3], [4], []]
    """
    size = -(-len(tensor) // world)
    first = min(rank * size, len(tensor))
    return tensor[first : min(first + size, len(tensor))].detach().clone()


class Deal:
    """Distributes a captured state's tensors to the ranks, by the names and the positions of the weights."""

    def __init__(self, names: Mapping[str, int], places: Sequence[int]) -> None:
        self.names = names
        """The number of a weight, by its name; a tied weight has several names."""
        self.places = places
        """The numbers of the weights in the optimizer's order."""

    def cut(self, parts: Mapping[str, Any], rank: int, world: int) -> dict[str, Any]:
        """A rank's part of a whole state. Rank 0 counts the samples of an open window."""
        known: dict[int, Tensor] = {}

        def piece(tensor: Tensor) -> Tensor:
            if id(tensor) not in known:
                known[id(tensor)] = piece_of(tensor, rank, world)
            return known[id(tensor)]

        told = self._changed(parts, lambda tensors: piece(tensors[0]), [parts])
        if rank and told["window"]["count"]:
            told["window"]["total"] = told["window"]["total"] * 0
        return {**parts, **told}

    def join(self, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The whole state, joined from the part that each rank has captured."""
        known: dict[int, Tensor] = {}

        def whole(tensors: Sequence[Tensor]) -> Tensor:
            if id(tensors[0]) not in known:
                known[id(tensors[0])] = torch.cat([tensor.cpu() for tensor in tensors])
            return known[id(tensors[0])]

        joined = self._changed(each[0], whole, each)
        if joined["window"]["count"]:
            for other in each[1:]:
                joined["window"]["total"] = joined["window"]["total"] + other["window"]["total"]
        return joined

    def _changed(
        self,
        parts: Mapping[str, Any],
        change: Callable[[Sequence[Tensor]], Tensor],
        each: Sequence[Mapping[str, Any]],
    ) -> dict[str, Any]:
        """The divided parts, with each distributed tensor replaced by `change` of the ranks' pieces."""
        models = [one["model"] for one in each]
        tensors = {
            name: change([one["tensors"][name] for one in models]) if name in self.names else tensor
            for name, tensor in parts["model"]["tensors"].items()
        }
        optimizers = [one["optimizer"]["state"] for one in each]
        weights = [each[0]["model"]["tensors"][self._name(place)].shape for place in self.places]
        state = [
            None
            if held is None
            else self._moments(held, [one[at] for one in optimizers], weights[at], change)
            for at, held in enumerate(parts["optimizer"]["state"])
        ]
        window = dict(parts["window"])
        if window["count"]:
            grads = [one["window"]["grads"] for one in each]
            window["grads"] = [
                None if grad is None else change([one[at] for one in grads])
                for at, grad in enumerate(window["grads"])
            ]
        return {
            "model": {**parts["model"], "tensors": tensors},
            "optimizer": {**parts["optimizer"], "state": state},
            "window": window,
        }

    def _name(self, place: int) -> str:
        return next(name for name, number in self.names.items() if number == place)

    @staticmethod
    def _moments(
        held: Mapping[str, Any],
        each: Sequence[Mapping[str, Any]],
        shape: Size,
        change: Callable[[Sequence[Tensor]], Tensor],
    ) -> dict[str, Any]:
        """Change the optimizer's tensors that are as large as their weight: they are distributed like it. All
        ranks have the other values, like a count of steps."""
        values = {
            key: change([one["values"][key] for one in each])
            if isinstance(value, Tensor) and value.ndim and value.shape == shape
            else value
            for key, value in held["values"].items()
        }
        return {**held, "values": values}
