"""What rank 0 sends the other ranks of its state, and how they take it.

Rank 0 sends everything that a step can change. Three parts are each rank's own: its random stream, its part
of an open window, and what its steps reach outside of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from ..data.rng import mix, seeded_rng
from ..errors import StateError
from ..run.replica import Replica
from ..state.state import written
from ..step.update import reordered
from .shipping import on_host

_EACH = ("rng", "window")
_SAME = ("scheduler", "loop", "scaler", "early_stopping")


# What is each rank's own -----------------------------------------------------------------------------


class OwnParts:
    """Each rank's own part of the state, for rank 0: it knows them, or the ranks alone do, or nobody does."""

    def __init__(self, *, lost: bool = False) -> None:
        self.known: list[Any] | None = None
        """They are those of the state that rank 0 was set to. None: that state has none, or the ranks have
        moved on."""
        self.lost = lost
        self._moved = False

    def are(self, known: list[Any] | None) -> None:
        """The ranks, which have ended, get these when they begin again; None: as unknown as before."""
        self.known, self.lost, self._moved = known, self.lost and known is None, False

    def move(self) -> None:
        """The ranks take steps: from here on they alone know them."""
        self.known, self.lost, self._moved = None, False, True

    def end(self) -> None:
        """The ranks cannot be asked any more."""
        self.lost, self._moved = self.lost or self._moved, False


def own_of(replica: Replica) -> dict[str, Any]:
    """This rank's own part of the state at this boundary, which no other rank knows."""
    places = {
        name: replica.parts[name].capture()
        for name in replica.parts
        if name.startswith("data ") and _walks(replica, name)
    }
    return {
        "rng": replica.rng.capture(),
        "window": replica.parts["window"].capture(),
        "streams": {name: place["stream"] for name, place in places.items()},
        "began": {name: written(place["began"]) for name, place in places.items()},
        "carried": written(replica.carried.capture()),
    }


def take_own(replica: Replica, own: Mapping[str, Any] | None, seed: int, window: Mapping[str, Any]) -> None:
    """Restore this rank's own part; or, if it has none, begin with a new stream and an empty window."""
    if own is None:
        replica.rng.restore(seeded_rng(seed).plain())
        replica.parts["window"].restore(nothing_of(window))
    else:
        replica.rng.restore(own["rng"])
        replica.parts["window"].restore(own["window"])


def seed_of(rng: Mapping[str, Any], rank: int) -> int:
    """The seed of a rank's own stream, computed from rank 0's stream without drawing from it."""
    state: Tensor = rng["host"]["torch"]
    return mix(xxhash.xxh3_64_intdigest(state.numpy().tobytes()), rank)


def joined(window: dict[str, Any], others: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The open windows of all ranks joined to one, with which one rank can go on alone."""
    whole = dict(window)
    for other in others:
        theirs = other["window"]
        if not window["count"] or theirs["count"] != window["count"]:
            continue
        whole["total"] = whole["total"] + theirs["total"]
        for name in ("grads", "folded"):
            if whole[name] is not None or theirs.get(name) is not None:
                whole[name] = _summed(whole[name], theirs[name])
    return whole


def _summed(ours: list[Any] | None, theirs: list[Any] | None) -> list[Any] | None:
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    return [
        b if a is None else a if b is None else a + b.to(a.device) for a, b in zip(ours, theirs, strict=True)
    ]


def reshaped(own: dict[str, Any], mine: Mapping[str, Any], order: list[int | None]) -> dict[str, Any]:
    """A rank's own part after layers or groups have come or gone. `mine` is the open window of rank 0."""
    found = {name: reordered(own["window"].get(name), order) for name in ("grads", "folded", "left")}
    window = {**own["window"], "rates": mine["rates"]}
    return {**own, "window": {**window, **{name: each for name, each in found.items() if name in window}}}


def nothing_of(window: Mapping[str, Any]) -> dict[str, Any]:
    """An empty part of an open window, for a rank when another rank has the whole window."""
    nothing = dict(window)
    if window["count"]:
        nothing["total"] = 0.0
        nothing["grads"] = [None] * len(window["grads"])
        nothing["folded"] = None
    return nothing


# What is the same on all of them ---------------------------------------------------------------------


def told_by(replica: Replica) -> dict[str, Any]:
    """Rank 0's state for the other ranks, in the order in which they take it."""
    return {name: on_host(part.capture()) for name, part in replica.parts.items() if name != "rng"}


def take(
    replica: Replica,
    parts: Mapping[str, Any],
    own: Mapping[str, Any] | None,
    seed: int,
    divided: bool = False,
) -> None:
    """Take rank 0's state. If the weights are divided, rank 0 sends each rank its part of the open window."""
    for name, part in replica.parts.items():
        if name in _EACH:
            continue
        if name == "carried":
            part.restore((own or parts).get(name, parts[name]))
            continue
        if name not in parts:
            raise StateError(f"rank 0 has no {name}")
        if name.startswith("metrics "):
            replica.loop.passes["train" if name.endswith("train") else "valid"].metrics.reset()
        elif not name.startswith("data "):
            part.restore(parts[name])
        elif _walks(replica, name):
            mine = {} if own is None else {"stream": own["streams"].get(name) or parts[name]["stream"]}
            if own is not None:
                mine["began"] = own.get("began", {}).get(name)
            part.restore({**parts[name], **mine})
    if divided and own is not None:
        own = {**own, "window": parts["window"]}
    take_own(replica, own, seed, parts["window"])
    if divided:
        replica.parts["window"].restore(parts["window"])


Cut = Callable[[Tensor, int], Tensor]
"""Cuts a rank's part from a tensor that belongs to the weight with this number."""


def fingerprint(replica: Replica, cut: Cut | None = None) -> int:
    """A number that differs if the state that all ranks share differs.

    Buffers are left out: rank 0 sends them at every step. Nothing else may differ. Each weight is read once.
    """
    hashed = xxhash.xxh3_64()
    update = replica.loop.update
    for tensor, number in _tensors(replica):
        hashed.update(_bytes_of(tensor if cut is None else cut(tensor, number)))
    groups = [{k: v for k, v in group.items() if k != "params"} for group in update.optimizer.param_groups]
    _add(hashed, [groups, [parameter.requires_grad for parameter in update.parameters]])
    for name in _SAME:
        if name in replica.parts:
            _add(hashed, replica.parts[name].capture())
    _add(hashed, update.count)
    return hashed.intdigest()


def _tensors(replica: Replica) -> Iterator[tuple[Tensor, int]]:
    """Each tensor with the number of the weight that it belongs to."""
    update = replica.loop.update
    numbers = {id(parameter): number for number, parameter in enumerate(update.parameters)}
    for each in (update.parameters, () if update.average is None else update.average.parameters()):
        yield from ((tensor, number) for number, tensor in enumerate(each))
    for group in update.optimizer.param_groups:
        for parameter in group["params"]:
            for value in update.optimizer.state.get(parameter, {}).values():
                if isinstance(value, Tensor):
                    yield value, numbers[id(parameter)]


def _bytes_of(tensor: Tensor) -> Any:
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.device.type == "cpu":
        return flat.view(torch.uint8).numpy() if flat.numel() else b""
    whole = flat.view(torch.uint8).to(torch.int64)  # on the device: only the sum is copied from it
    places = torch.arange(1, len(whole) + 1, device=flat.device)
    return np.array([int(whole.sum()), int((whole * places).sum())]).tobytes()


def _add(hashed: Any, tree: Any) -> None:
    if isinstance(tree, Tensor):
        hashed.update(_bytes_of(tree))
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            hashed.update(repr(key).encode())
            _add(hashed, value)
    elif isinstance(tree, (list, tuple)):
        hashed.update(str(len(tree)).encode())
        for value in tree:
            _add(hashed, value)
    else:
        hashed.update(repr(tree).encode())


def _walks(replica: Replica, name: str) -> bool:
    """Whether this rank walks its own loader; otherwise rank 0 sends its part."""
    return replica.loop.passes["train" if name.endswith("train") else "valid"].cursor.walk.cuts
