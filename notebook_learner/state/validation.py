"""Checks a state from a file: whether it has the kinds, lengths and bounds of a captured state.

A file from an unknown source can have right checksums and right shapes. So its values are compared with a
state of the learner that it is for, before any of them is used. With a position beyond the end, the learner
would take steps for years. With a position outside its table, a random generator would read memory that is
not its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..data.rng import HostRng, check_host
from ..errors import StateError
from ..store.layout import check_metric_name
from .state import State

_FAR = 1 << 40
"""More steps than any run takes."""


def check_sound(state: State, mine: State, totals: Mapping[str, int | None]) -> None:
    """Raise a StateError if a state cannot have been captured from a learner that gives `mine`.

    Args:
        state: the state from a file.
        mine: a state captured from the learner that it is for.
        totals: the batches of an epoch of each split, if the loader knows them.
    """
    try:
        _check(state, mine, totals)
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        RuntimeError,
        OverflowError,
    ) as error:
        raise StateError(f"this file does not hold a valid state: {error!r}") from error


def _check(state: State, mine: State, totals: Mapping[str, int | None]) -> None:
    at, loop = state.position, state.parts["loop"]
    _require(at.split in ("train", "valid"), "its split is not train or valid")
    _count(at.epoch, "its epoch", 1)
    _count(at.step, "its step")
    _count(at.iteration, "its iteration")
    _require(
        (loop["epoch"], loop["split"], loop["done"]) == (at.epoch, at.split, at.step),
        "its loop stands elsewhere",
    )
    _count(loop["trained"], "its training steps")
    _like(loop["ended"], mine.parts["loop"]["ended"], "loop.ended")
    for split, name, value in loop["finals"]:
        _require(split in ("train", "valid") and isinstance(name, str), "a final value of no metric")
        _number(value, "a final value")
    for name, part in state.parts.items():
        if name.startswith("data "):
            split = name.removeprefix("data ")
            step = at.step if at.split == split else None
            _check_loader(part, mine.parts.get(name), step, totals.get(split))
        if name.startswith("metrics "):
            _check_logged(part)
    _check_window(state.parts["window"], mine)
    if "ranks" in state.parts:
        _check_ranks(state.parts["ranks"], mine)
    for name in ("early_stopping", "scaler"):
        if name in mine.parts:
            _check_numbers(state.parts[name], mine.parts[name], name)
    _check_host(state.parts["rng"]["host"])
    _check_optimizers(state.parts["optimizer"], mine.parts["optimizer"])
    for name in ("model", "ema"):
        if name in mine.parts:
            _check_model(state.parts[name], mine.parts[name])


def check_passes(passes: Iterable[Any]) -> None:
    """Raise a ValueError if a commit file's passes cannot have been measured by a run."""
    for each in passes:
        finals = each.finals
        if not 1 <= each.epoch < _FAR or each.steps >= _FAR:
            raise ValueError("not a valid pass")
        if finals is not None and not (
            isinstance(finals, dict)
            and all(isinstance(name, str) and type(value) in (int, float) for name, value in finals.items())
        ):
            raise ValueError("a pass without valid values")


def _check_loader(saved: Any, live: Any, step: int | None, total: int | None) -> None:
    _count(saved["epoch"], "a loader's epoch", 1)
    devices = saved.get("devices", 1)
    _count(devices, "a loader's number of devices", 1)
    most = total if live is not None and devices == live["devices"] else None
    _count(saved["step"], "a loader's step", 0, _FAR if most is None else most)
    _require(step is None or saved["step"] == step, "a loader is at another step than the loop")
    _require(type(saved["warm"]) is bool, "a loader's `warm` flag is not True or False")
    if saved["start"] is not None:
        _check_host(saved["start"]["rng"]["host"])
        _generators(saved["start"]["generators"], live)
        _require(type(saved["start"]["warm"]) is bool, "a loader's `warm` flag is not True or False")
    if saved["stream"] is not None:
        _check_host(saved["stream"])
    _generators(saved["generators"], live)
    if live is not None and type(live["loader"]) is int:
        _require(type(saved["loader"]) is int, "a loader's seed is not an integer")


def _check_logged(saved: Any) -> None:
    logged = saved["logged"]
    _require(
        isinstance(logged, list) and len(set(logged)) == len(logged),
        "the logged metrics are not a list of different names",
    )
    for name in logged:
        _require(check_metric_name(name) is None, "a metric whose log would leave the directory")
        _require(name in saved["sums"] and name in saved["metrics"], "a logged metric without its sums")


def _generators(saved: Any, live: Any) -> None:
    _require(isinstance(saved, (tuple, list)), "the generators are not a list")
    _require(live is None or len(saved) == len(live["generators"]), "another number of generators")
    for each in saved:
        torch.Generator().set_state(each)


def _check_window(saved: Any, mine: State) -> None:
    own = mine.parts["optimizer"]
    each = [one.get("groups") for one in own.get("named", {"": own}).values()]
    groups = None if None in each else [group for groups in each for group in groups]
    _count(saved["count"], "a window")
    _require(isinstance(saved["rates"], list), "the learning rates are not a list")
    _require(groups is None or len(saved["rates"]) == len(groups), "another number of learning rates")
    for rate in saved["rates"]:
        _number(rate, "a rate", none=True)
    _number(saved["norm"], "a norm", none=True)
    _check_gradients(saved.get("left") or ())
    if saved["count"]:
        _number(saved["first"], "a weight")
        _number(saved["total"], "a weight")
        for grads in (saved["grads"], saved["folded"] or ()):
            _check_gradients(grads)


def _check_gradients(saved: Iterable[Any]) -> None:
    _require(
        all(each is None or isinstance(each, Tensor) for each in saved), "the saved gradients are not tensors"
    )


def _check_ranks(saved: Any, mine: State) -> None:
    """Check what each rank has for itself, in a training on several devices."""
    _count(saved["world"], "a number of ranks", 2)
    _require(isinstance(saved["each"], (list, tuple)), "the ranks are not a list")
    _require(len(saved["each"]) == saved["world"], "another number of ranks")
    for rank, each in enumerate(saved["each"]):
        _check_window(each["window"], mine)
        if rank:
            _check_host(each["rng"]["host"])
            for stream in each["streams"].values():
                if stream is not None:
                    _check_host(stream)


def _check_numbers(saved: Any, live: Any, place: str) -> None:
    _require(isinstance(saved, dict) and saved.keys() == live.keys(), f"{place} has other entries")
    for key, value in saved.items():
        _number(value, f"{place}.{key}", none=True)


def _check_optimizers(saved: Any, live: Any) -> None:
    several, mine = saved.get("named", {"": saved}), live.get("named", {"": live})
    _require(list(several) == list(mine), "other optimizers")
    for name, each in mine.items():
        _check_groups(several[name], each)


def _check_groups(saved: Any, live: Any) -> None:
    if "own" in live:
        _require("own" in saved, "the optimizer has its own form of state, and the file does not")
        return
    _require(len(saved["groups"]) == len(live["groups"]), "another number of optimizer groups")
    for one, other in zip(saved["groups"], live["groups"], strict=True):
        missing = [key for key in other if key not in one]
        _require(not missing, f"optimizer groups without their {', '.join(missing)}")
        _require("params" not in one, "optimizer groups that contain parameters")
        for key, value in one.items():
            _like(value, other.get(key), f"optimizer group's {key}")
    for moments in saved["state"]:
        if moments is not None:
            _require(isinstance(moments, dict), "the optimizer's moments are not a dict")
            _require(isinstance(moments["values"], dict), "moments without values")
            _require(all(isinstance(key, str) for key in moments["values"]), "moments without names")
            _require(isinstance(moments["host"], list), "moments that do not say which are on the host")
    _require(isinstance(saved["shared"], dict), "the optimizer's shared state is not a dict")


def _check_model(saved: Any, live: Any) -> None:
    _require(
        isinstance(saved["tensors"], dict) and isinstance(saved["extra"], dict), "a model without tensors"
    )
    _require(saved["extra"].keys() == live["extra"].keys(), "extra states for other modules")
    for name, tensor in saved["tensors"].items():
        _require(isinstance(tensor, Tensor), f"{name} is not a tensor")


def _check_host(state: Any) -> None:
    host = HostRng.of(state)
    check_host(host)
    inner = host.numpy["state"]
    if host.numpy["bit_generator"] == "MT19937":  # NumPy does not check the place in its table
        _count(inner["pos"], "a random generator's place", 0, 624)


def _like(saved: Any, live: Any, place: str) -> None:
    """Check that it is of the same kind as the live value, if that has a kind."""
    if live is None or saved is None:
        return
    if isinstance(live, (bool, int, float, Tensor)):
        _number(saved, place)
    elif type(saved) is not type(live) or (isinstance(live, (tuple, list)) and len(saved) != len(live)):
        raise StateError(f"the state's {place} is not valid: {_said(saved)!r}")


def _number(value: Any, what: str, none: bool = False) -> None:
    fits = type(value) in (bool, int, float) or (isinstance(value, Tensor) and value.numel() == 1)
    _require(fits or (none and value is None), f"{what} is not a number")


def _count(value: Any, what: str, least: int = 0, most: int = _FAR) -> None:
    _require(type(value) is int and least <= value <= most, f"{what} is {_said(value)}")


def _said(value: Any) -> str:
    # To print a tensor, torch loads modules of its own; this process must load no further code.
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    plain = value is None or isinstance(value, (bool, int, float, str))
    return str(value)[:40] if plain else f"of type {type(value).__name__}"


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise StateError(f"this file does not hold a valid state: {what}")
