"""Loads the weights of a checkpoint into a model: all of them, or none of them. Those of a base that did not
train may be left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import DamagedError, StateError
from ..store.tensors import digest_of_tensor

# The base of a fine-tuned model ----------------------------------------------------------------------------


class Base:
    """The weights that do not train, as they were when the learner was built. A checkpoint has their digests,
    and the values of all others.

    >>> model = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 1))
    >>> saved = Base("bert-base", model).left_out({"tensors": model.state_dict(), "extra": {}})
    >>> list(saved["tensors"]), list(saved["base"]["tensors"])
    (['1.weight', '1.bias'], ['0.weight', '0.bias'])
    """

    def __init__(self, source: str, model: nn.Module) -> None:
        self.source = source
        self._model = model
        frozen = [each.detach() for each in model.parameters() if not each.requires_grad]
        self._digests = {digest_of_tensor(each) for each in frozen}
        self._kinds = {(each.shape, each.dtype) for each in frozen}

    def left_out(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """A model file's value without the tensors of the base."""
        base: dict[str, str] = {}
        for name, tensor in value["tensors"].items():
            if (tensor.shape, tensor.dtype) in self._kinds:
                digest = digest_of_tensor(tensor)
                if digest in self._digests:
                    base[name] = digest
        own = {name: each for name, each in value["tensors"].items() if name not in base}
        return {**value, "tensors": own, "base": {"source": self.source, "tensors": base}}


def with_base(value: Any, label: str, model: nn.Module) -> Any:
    """A model file's value with the tensors of the base, which the model has.

    Raises:
        StateError: the model has another base.
    """
    if not isinstance(value, dict) or "base" not in value:
        return value
    tensors, _ = parts_of(value, label)
    source, wanted = _read(value["base"], label)
    if not wanted.keys().isdisjoint(tensors):
        raise DamagedError(f"the model file of checkpoint {label} has a tensor twice")
    digests = {*wanted.values()}
    found = {digest_of_tensor(each): each.detach() for each in _tensors(model).values() if not is_lazy(each)}
    if missing := [name for name, digest in wanted.items() if digest not in found]:
        shown = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise StateError(
            f"checkpoint {label} holds only what trained, and needs {len(digests)} tensors of its base, "
            f"{source!r}; this model has other values for {len(missing)} of them ({shown}). Load the weights "
            f"of {source!r} into the model first"
        )
    return {**value, "tensors": {**tensors, **{name: found[digest] for name, digest in wanted.items()}}}


def _read(base: Any, label: str) -> tuple[str, dict[str, str]]:
    told = base if isinstance(base, dict) else {}
    source, tensors = told.get("source"), told.get("tensors")
    named = isinstance(tensors, dict) and all(isinstance(each, str) for each in tensors.values())
    if not isinstance(source, str) or not isinstance(tensors, dict) or not named:
        raise DamagedError(f"the model file of checkpoint {label} does not say what its base is")
    return source, tensors


# Reading ---------------------------------------------------------------------------------------------------

_EXTRA = "_extra_state"
_AVERAGED = "module."


def parts_of(value: Any, label: str) -> tuple[Mapping[str, Tensor], Mapping[str, Any]]:
    """Tensors and extra states of a model file."""
    tensors = value.get("tensors", value) if isinstance(value, dict) else None
    extra = value.get("extra", {}) if isinstance(value, dict) and "tensors" in value else {}
    if (
        not isinstance(tensors, dict)
        or not isinstance(extra, dict)
        or not all(isinstance(each, Tensor) for each in tensors.values())
    ):
        raise DamagedError(f"the model file of checkpoint {label} does not hold tensors by name")
    return tensors, extra


def state_dict_of(value: Any, label: str) -> dict[str, Any]:
    """The values of `torch.nn.Module.state_dict`, and the non-persistent buffers."""
    tensors, extra = parts_of(value, label)
    extras = {f"{name}.{_EXTRA}" if name else _EXTRA: state for name, state in extra.items()}
    return {**{name: tensor.detach() for name, tensor in tensors.items()}, **extras}


def average_in(state: Any, label: str) -> dict[str, Any] | None:
    """The moving average in a commit file, like the value of a model file; None if it has no average."""
    parts = state.get("parts") if isinstance(state, dict) else None
    average = parts.get("ema") if isinstance(parts, dict) else None
    if average is None:
        return None
    tensors, extra = parts_of(average, label)
    return {"tensors": _inside(tensors), "extra": _inside(extra)}


def _inside(named: Mapping[str, Any]) -> dict[str, Any]:
    """The averaging module holds the model as `module`, and a count of its own."""
    return {
        name.removeprefix(_AVERAGED): value for name, value in named.items() if name.startswith(_AVERAGED)
    }


def load_into(model: nn.Module, value: Any, label: str) -> None:
    """Copy a checkpoint's weights into a model, on the model's device and in its dtypes.

    Raises:
        StateError: it belongs to another model; every difference is listed, and nothing was changed.
    """
    value = with_base(value, label, model)
    tensors, extra = parts_of(value, label)
    fleeting = set(_non_persistent(model))
    live = {name: tensor for name, tensor in _tensors(model).items() if name not in fleeting}
    saved = {name: tensor for name, tensor in tensors.items() if name not in fleeting}
    wrong = [*_differences(live, saved), *_strange_extras(model, extra)]
    if wrong:
        lines = "\n".join(f"  - {line}" for line in wrong)
        raise StateError(f"checkpoint {label} is of another model; nothing was loaded:\n{lines}")
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(saved[name])
    for name, state in extra.items():
        model.get_submodule(name).set_extra_state(deepcopy(state))


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _differences(live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in live.items():
        if is_lazy(tensor):
            yield f"{name}: the model has not made it yet; pass a batch through the model first"
        elif name not in saved:
            yield f"{name}: not saved; the model has {_shown(tensor)}"
        elif saved[name].shape != tensor.shape or _kind(saved[name]) != _kind(tensor):
            yield f"{name}: saved {_shown(saved[name])}, the model has {_shown(tensor)}"
    for name in saved:
        if name not in live:
            yield f"{name}: saved {_shown(saved[name])}, the model has no such tensor"


def _strange_extras(model: nn.Module, extra: Mapping[str, Any]) -> Iterator[str]:
    modules = dict(model.named_modules())
    for name in extra:
        module = modules.get(name)
        if module is None or type(module).set_extra_state is nn.Module.set_extra_state:
            yield f"{name or 'the model'}: extra state was saved, the model has no module that takes it"


def _non_persistent(model: nn.Module) -> Iterator[str]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in module._non_persistent_buffers_set:
            yield f"{prefix}.{name}" if prefix else name


def _kind(tensor: Tensor) -> str:
    if tensor.dtype.is_complex:
        return "complex"
    return "float" if tensor.dtype.is_floating_point else str(tensor.dtype)


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"
