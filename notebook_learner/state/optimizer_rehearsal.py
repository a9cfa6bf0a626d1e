"""Whether an optimizer can step with what a file holds for it. This is tried before anything is changed.

Only the optimizer itself knows what it keeps for a parameter. If a file leaves something out, or holds it in
another shape, the optimizer would fail at its next step, with an error that does not mention the file. So its
step is taken with stand-ins: tensors on the device "meta". They have shapes and kinds but no numbers, take no
memory, and refuse what tensors of a device would refuse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..errors import StateError, a_kind
from .state import ModelPart, OptimizerPart, OptimizersPart, Part, State

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
                    f"{_said(moments)}. Another optimizer wrote its file optim-..., or it was damaged. "
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


def _said(moments: Moments) -> str:
    return ", ".join(f"{key} {_told(value)}" for key, value in moments.items()) or "nothing"


def _told(value: Any) -> str:
    """A number, also one in a tensor, as text: the text of a tensor makes torch import a lot."""
    if not isinstance(value, Tensor):
        return str(value)[:20] if _is_simple(value) else a_kind(value)
    return str(tuple(value.shape) if value.dim() else value.item())[:20]


def _is_simple(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
