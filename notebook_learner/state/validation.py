"""Checks a state from a file: whether it has the kinds, lengths and bounds of a captured state.

A file from an unknown source can have right checksums and right shapes. So its values are compared with a
state of the learner that it is for, before any of them is used. With a position beyond the end, the learner
would take steps for years. With a position outside its table, a random generator would read memory that is
not its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..data.rng import HostRng, check_host
from ..errors import StateError, a_kind
from ..store.layout import check_metric_name
from .state import ModelPart, OptimizerPart, OptimizersPart, Part, State

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
    _check_frozen(loop.get("frozen"))
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
    _require(type(saved.get("seed")) in (int, type(None)), "a run's seed is not an integer")
    if saved["start"] is not None:
        _check_host(saved["start"]["rng"]["host"])
        _generators(saved["start"]["generators"], live)
        _require(type(saved["start"]["warm"]) is bool, "a loader's `warm` flag is not True or False")
    if saved["stream"] is not None:
        _check_host(saved["stream"])
    _generators(saved["generators"], live)
    if live is not None and type(live["loader"]) is int:
        _require(type(saved["loader"]) is int, "a loader's seed is not an integer")


def _check_frozen(numbers: Any) -> None:
    sound = numbers is None or (
        isinstance(numbers, list) and all(type(each) is int and each >= 0 for each in numbers)
    )
    _require(sound, "the modules that do not train are not a list of numbers")


def _check_logged(saved: Any) -> None:
    logged = saved["logged"]
    _require(
        isinstance(logged, list) and len(set(logged)) == len(logged),
        "the logged metrics are not a list of different names",
    )
    for name in logged:
        _require(check_metric_name(name) is None, "a metric whose log would leave the directory")
        _require(name in saved["sums"] and name in saved["metrics"], "a logged metric without its sums")
    places = saved.get("objects", {})
    _require(
        isinstance(places, dict) and all(isinstance(each, str) for each in places.values()),
        "the places of its metric objects are not texts by name",
    )


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
    _count(saved.get("split", 1), "a batch's parts", 1)
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
    _count(saved["world"], "a number of ranks", 2 if saved["world"] else 0)  # 0: they had died
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
    lacks = {"best_epoch"}  # of an earlier version
    _require(isinstance(saved, dict) and {*saved} | lacks == {*live} | lacks, f"{place} has other entries")
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


_PLAINLY = ("foreach", "fused", "capturable", "differentiable")
"""Without these options a step does the same, and needs no accelerator."""

Moments = Mapping[str, Any]
"""What an optimizer keeps for a parameter."""


def rehearse(parts: Mapping[str, Part], state: State, source: str) -> None:
    """Raise if a state makes a step of one of torch's optimizers fail. Other classes are not tried: it is not
    known what else their step does.

    Args:
        parts: the parts of the learner that is to go on; none of them is changed.
        state: the state from a file.
        source: the file's name, for messages.
    """
    part, model, saved = parts["optimizer"], parts["model"], state.parts["optimizer"]
    assert isinstance(model, ModelPart)
    if isinstance(part, OptimizersPart):
        for name, each in part.parts.items():
            _rehearse(each, model, saved["named"][name], source)
    else:
        assert isinstance(part, OptimizerPart)
        _rehearse(part, model, saved, source)


def _rehearse(part: OptimizerPart, model: ModelPart, saved: Mapping[str, Any], source: str) -> None:
    optimizer = part.optimizer
    if not f"{type(optimizer).__module__}.".startswith("torch.optim.") or "state" not in saved:
        return
    if model.stand_ins:  # each device has a part of a parameter; the file has whole ones
        return
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.model.named_parameters()}
    seen: set[Any] = set()
    for group, options, parameter, moments in _each(optimizer, saved):
        kind = _kind_of(options, parameter, moments)
        if kind not in seen:
            seen.add(kind)
            if why := _wrong(optimizer, group, options, parameter, moments):
                name = names.get(parameter, f"of the shape {tuple(parameter.shape)}")
                raise StateError(
                    f"{source} holds for the optimizer what {type(optimizer).__name__} cannot have kept: its "
                    f"next steps would fail at the parameter {name} ({why}), for which there is "
                    f"{_said_of(moments)}. Another optimizer wrote its file optim-..., or it was damaged. "
                    "Nothing was changed. Go on from another checkpoint: .checkpoint(label) on the builder, "
                    "or learner.restore(label); Artifacts(directory).checkpoints lists them"
                )


def _each(
    optimizer: Optimizer, saved: Mapping[str, Any]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any], Tensor, Moments]]:
    """Each parameter with its group's options from the file, and what the file holds for the parameter."""
    states = iter(saved["state"])
    for live, options in zip(optimizer.param_groups, saved["groups"], strict=True):
        for parameter in live["params"]:
            state = next(states, None)
            yield live, options, parameter, {} if state is None else state["values"]


def _kind_of(options: Any, parameter: Tensor, moments: Moments) -> Any:
    """A key that is equal for two parameters that fail together."""
    kinds = [(key, *_plain(value)) for key, value in moments.items()]
    return id(options), parameter.shape if moments else None, parameter.dtype, tuple(kinds)


def _plain(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.layout, None if value.dim() else value.item()
    # Nothing is like a list or dict of a file but itself. Its text could be of any length, and to make the
    # text of a tensor in it, torch loads further code.
    return type(value), str(value)[:100] if _is_simple(value) else id(value)


def _wrong(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    options: Mapping[str, Any],
    parameter: Tensor,
    moments: Moments,
) -> str:
    """Say what is wrong with them; "" if they are right, or if it is not known."""
    for like in (_unreal, _real):  # some optimizers read a tensor's number, and `meta` has none
        try:
            fresh = _stepped(optimizer, group, parameter, {}, like)
        except Exception:  # it fails without the file's values too: not the file's fault
            continue
        for key, made in fresh.items():
            if isinstance(made, Tensor) and (misfit := _misfit(moments.get(key), made)):
                return f"{key} {misfit}"
        try:
            _stepped(optimizer, options, parameter, moments, like)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""
    return ""


def _misfit(value: Any, made: Tensor) -> str:
    """How a value differs in shape from what the optimizer makes: a later step may need it."""
    if not isinstance(value, Tensor) or value.shape == made.shape or value.numel() == made.numel() == 1:
        return ""
    return f"has the shape {tuple(value.shape)} in place of {tuple(made.shape)}"


def _stepped(
    optimizer: Optimizer,
    options: Mapping[str, Any],
    parameter: Tensor,
    moments: Moments,
    like: Callable[[Tensor], Tensor],
) -> Moments:
    """Take a step with a stand-in of one parameter, and return what is kept for it then."""
    like = like if parameter.dim() else _real  # a number may be on the host when all else is not
    stand_in = like(parameter.detach()).requires_grad_()
    stand_in.grad = like(parameter.detach())
    double: Any = object.__new__(type(optimizer))
    double.__dict__.update(optimizer.__dict__)
    plainly = {key: False for key in _PLAINLY if key in options}
    double.param_groups = [{**options, **plainly, "params": [stand_in]}]
    double.state = defaultdict(dict)
    if moments:
        double.state[stand_in] = {
            key: (like(value) if value.dim() else value.detach().cpu().clone())
            if isinstance(value, Tensor)
            else value
            for key, value in moments.items()
        }
    step = type(optimizer).step
    if getattr(step, "hooked", False):  # no hook may run
        step = getattr(step, "__wrapped__", step)
    step(double)
    kept: Moments = double.state[stand_in]
    return kept


def _unreal(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device="meta")


def _real(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def _said_of(moments: Moments) -> str:
    return ", ".join(f"{key} {_told(value)}" for key, value in moments.items()) or "nothing"


def _told(value: Any) -> str:
    """A number, also one in a tensor, as text: the text of a tensor makes torch import a lot."""
    if not isinstance(value, Tensor):
        return str(value)[:20] if _is_simple(value) else a_kind(value)
    return str(tuple(value.shape) if value.dim() else value.item())[:20]


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
