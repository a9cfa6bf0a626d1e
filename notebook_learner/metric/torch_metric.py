"""Any metric of torchmetrics as a metric of this package."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..errors import StateError, StepError, a_kind
from .base import Input, Metric, Scalar
from .rows import Appended
from .step_values import Logged
from .tensors import HALVES

if TYPE_CHECKING:
    import torchmetrics as tm

Value = Callable[[Any], Scalar]


class TorchMetric(Metric):
    """A metric of torchmetrics: a step's value is that of its batch, the epoch's that of all its batches.

    It gets `output` and `targets` without their graph, with half precision as float32, and moves to their
    device. What it has accumulated is part of every captured state. Its own checks of its arguments wait for
    the device; they run at the first step and are then switched off. A step's weight is the first dimension
    of its first argument; the epoch's value does not depend on it.

    A metric that keeps lists (of scores, of texts) has no value per step, unless you ask for it: for such a
    value, torchmetrics copies the lists at every step.

    Args:
        metric: an instance. It belongs to the learner from now on: use it nowhere else.
        name: its name on the screen and in the log file's name; by default the class's name.
        input: takes the metric's arguments out of the step's output: a tuple of arguments, a dict of named
            ones, or one argument.
        value: turns the metric's value into one number, if that is a dict or has a number per class.
        per_step: whether steps have a value, too.
        unit: shown after the number.

    >>> from torchmetrics.classification import MulticlassCohenKappa
    >>> TorchMetric(MulticlassCohenKappa(num_classes=10), name="Kappa").higher_is_better
    True
    """

    by_reference: ClassVar[tuple[str, ...]] = ("take", "value")
    """The user's functions, which copies of the metric share."""

    append_only = True

    def __init__(
        self,
        metric: tm.Metric,
        *,
        name: str | None = None,
        input: Input | None = None,
        value: Value | None = None,
        per_step: bool | None = None,
        unit: str = "",
    ) -> None:
        super().__init__()
        _require_metric(metric)
        self.metric = metric
        self.name = name or type(metric).__name__
        self.take = input
        self.value = value
        self.unit = unit
        self.higher_is_better = metric.higher_is_better
        self.needs = ("output", "targets") if input is None else ()
        self.per_step = not any(_lists(part) for _, part in self._parts()) if per_step is None else per_step
        self._checked = False
        self._lists: dict[tuple[str, str], _Listed | _Joined] = {}
        for _, part in self._parts():
            # The learner decides when ranks meet. A metric that waits for the others in compute() would wait
            # for ever if only one of them validates.
            part.sync_on_compute = part._to_sync = False

    def update(self, item: Any) -> tuple[Scalar, Scalar]:
        """Give the step to the metric."""
        given = (item.output, item.targets) if self.take is None else self.take(item)
        args, named = _arguments(given)
        first = next((each for each in (*args, *named.values()) if isinstance(each, Tensor)), None)
        if first is not None and first.device != self.metric.device:
            self.metric.to(first.device)
        before = self._held()
        try:
            value = (self.metric if self.per_step else self.metric.update)(*args, **named)
        except BaseException:
            # torchmetrics empties its state before it reads a batch, and leaves it empty if that fails.
            self._put(before)
            raise
        if not self._checked:
            self._spare_checks()
        weight = first.shape[0] if first is not None and first.ndim else 1
        return (self._number(value), weight) if self.per_step else (float("nan"), 0)

    def compute(self) -> Scalar | None:
        """Return the epoch's value; NaN before the first step."""
        if not any(part.update_called for _, part in self._parts()):
            return float("nan")
        return self._number(self.metric.compute())

    def reset(self) -> None:
        """Forget the epoch."""
        self.metric.reset()
        self._lists = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what the metric and those inside it accumulated; only the new part of a list is copied."""
        return {
            path: {
                "updates": part.update_count,
                "states": {name: self._told(path, part, name) for name in part._defaults},
            }
            for path, part in self._parts()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put a saved state back."""
        held = self._fitting(state)
        self._lists = {}
        for path, part in self._parts():
            states = held[path]["states"]
            for name, value in states.items():
                if not isinstance(value, list):
                    states[name] = _copy(value)  # the metric adds to it in place
                elif _joins(part, name, value):
                    self._lists[path, name] = _Joined(value)
                else:
                    states[name] = [_copy(each) for each in value]
                    self._lists[path, name] = _Listed(states[name], value)
        self._put(held)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what the same metric accumulated on other samples (its `state_dict`), on another rank.

        Raises:
            StateError: a part of the state has no rule for this (sum, mean, min, max, joining).
        """
        theirs = self._fitting(state)
        ours = self._held()
        merged = {}
        for path, part in self._parts():
            counts = [ours[path]["updates"], theirs[path]["updates"]]
            states = {
                name: _merged(part, name, ours[path]["states"][name], theirs[path]["states"][name], counts)
                for name in part._defaults
            }
            merged[path] = {"updates": sum(counts), "states": states}
        self._put(merged)

    def _parts(self) -> Iterator[tuple[str, Any]]:
        """The metric and the metrics inside it (wrappers and sums of metrics have some), by path."""
        theirs = torchmetrics("metrics of torchmetrics").Metric
        for path, part in self.metric.named_modules():
            if isinstance(part, theirs):
                yield f"metric.{path}" if path else "metric", part

    def _held(self) -> dict[str, Any]:
        """The state itself. A reset empties lists in place, so lists are copied (but not their elements)."""
        held = {}
        for path, part in self._parts():
            states = {name: getattr(part, name) for name in part._defaults}
            kept = {name: list(each) if isinstance(each, list) else each for name, each in states.items()}
            held[path] = {"updates": part.update_count, "states": kept}
        return held

    def _told(self, path: str, part: Any, name: str) -> Any:
        value = getattr(part, name)
        if not isinstance(value, list):
            return _copy(value)
        known = self._lists.get((path, name))
        if known is None or not known.begins(value):
            known = self._lists[path, name] = _Joined() if _joins(part, name, value) else _Listed()
        told, live = known.told(value)
        setattr(part, name, live)
        return told

    def _put(self, held: Mapping[str, Any]) -> None:
        for path, part in self._parts():
            for name, each in held[path]["states"].items():
                setattr(part, name, list(each) if isinstance(each, list) else each)
            part._update_count = held[path]["updates"]
            part._computed = part._forward_cache = part._cache = None
            # What forward() had changed before its batch failed.
            part._is_synced = part._to_sync = part._enable_grad = False
            part._should_unsync = True

    def _fitting(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a state, on this metric's device, if it is one of this metric."""
        parts = dict(self._parts())
        if state.keys() != parts.keys():
            raise StateError(
                f"the state of {self.name} belongs to a metric with the parts {sorted(state)}, but this one "
                f"has {sorted(parts)}; load it with the same metric"
            )
        return {path: _fit(self.name, part, state[path]) for path, part in parts.items()}

    def _spare_checks(self) -> None:
        self._checked = True
        part: Any
        for part in self.metric.modules():
            if getattr(part, "validate_args", False) is True:
                part.validate_args = False

    def _number(self, result: Any) -> Scalar:
        number = result if self.value is None else self.value(result)
        if isinstance(number, Tensor) and number.numel() == 1:
            return number.reshape(())
        if isinstance(number, (int, float)):
            return number
        shape = f" of shape {list(number.shape)}" if isinstance(number, Tensor) else ""
        raise StepError(
            f"{self.name} gives {a_kind(number)}{shape}, and a metric is one number: choose an "
            "average where the metric has one (average='macro'), or say which number it is: "
            "TorchMetric(..., value=lambda result: ...)"
        )


class LoggedObject(Logged):
    """What `learner.log(name, metric)` becomes: a metric object that the user's steps update. A step's value
    is what the object returned when it was last called, the epoch's that of all its batches.

    Args:
        name: the name that it is logged by.
        place: where the object is in the model: "valid_metrics.f1".
        owner: the model.
    """

    append_only = True

    def __init__(self, name: str, place: str, owner: Any) -> None:
        super().__init__(name)
        self.place, self.owner = place, owner
        self.metric = owner.get_submodule(place)
        self._inner = TorchMetric(self.metric, name=name)

    def put(self, value: Any) -> None:
        """Take the object after the current step has updated it."""
        if (last := value._forward_cache) is not None:
            super().put(last)

    def compute(self) -> Scalar | None:
        """Return the epoch's value."""
        return self._inner.compute()

    def reset(self) -> None:
        """Begin an epoch."""
        super().reset()
        self._inner.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return what the object has accumulated."""
        return self._inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` returned."""
        self._inner.load_state_dict(state)

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what the same object has accumulated on another rank."""
        self._inner.merge(state)


@contextmanager
def objects_kept(model: Any, *, anew: bool = False) -> Iterator[None]:
    """Afterwards, the metric objects in a model are as they were; `anew` empties them before."""
    found = [TorchMetric(each) for each in model.modules() if object_in(each) is not None]
    states = [(each, each.state_dict()) for each in found]
    for each in found if anew else ():
        each.reset()
    try:
        yield
    finally:
        for each, state in states:
            each.load_state_dict(state)


def object_in(value: Any) -> Any:
    """The value, if it is a metric object of torchmetrics, or None. It does not load torchmetrics."""
    package = sys.modules.get("torchmetrics")
    return value if package is not None and isinstance(value, package.Metric) else None


def place_in(owner: Any, metric: Any) -> str | None:
    """Where a metric object is in the model, or None. It takes 0.4 us a module."""
    return next((path for path, each in owner.named_modules() if each is metric), None)


def _require_metric(metric: Any) -> None:
    theirs = torchmetrics("metrics of torchmetrics")
    if isinstance(metric, theirs.Metric):
        return
    if isinstance(metric, theirs.MetricCollection):
        raise TypeError(
            "TorchMetric was given a MetricCollection, which has many values; register one TorchMetric for "
            "each of its metrics"
        )
    if isinstance(metric, type):
        raise TypeError(
            f"TorchMetric was given the class {metric.__name__}; give an instance: {metric.__name__}(...)"
        )
    raise TypeError(f"TorchMetric was given {a_kind(metric)}; give an instance of torchmetrics.Metric")


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), {name: _plain(each) for name, each in given.items()}
    return tuple(map(_plain, given)) if isinstance(given, (tuple, list)) else (_plain(given),), {}


def _plain(value: Any) -> Any:
    """A value without the graph, which torchmetrics would go on recording; its sums have the input's
    precision."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().float() if value.dtype in HALVES else value.detach()


def _lists(part: Any) -> bool:
    return any(isinstance(default, list) for default in part._defaults.values())


class _Listed:
    """What was returned of a list whose elements stay separate: copies, as the metric may write to its
    own."""

    def __init__(self, seen: Sequence[Any] = (), copies: Sequence[Any] = ()) -> None:
        self._seen, self._copies = list(seen), list(copies)
        self._versions = [_version(each) for each in seen]

    def begins(self, value: list[Any]) -> bool:
        """Whether the list begins with what was returned before, unchanged."""
        same = len(value) >= len(self._seen) and all(map(is_, value, self._seen))
        return same and [_version(each) for each in self._seen] == self._versions

    def told(self, value: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the list for a state, and the metric's own."""
        new = value[len(self._seen) :]
        self._seen += new
        self._versions += [_version(each) for each in new]
        self._copies += [_copy(each) for each in new]
        return list(self._copies), value


class _Joined:
    """What was returned of a list that torchmetrics joins in the end. The metric goes on with the same
    memory: a
    checkpoint of a thousand small tensors would take long."""

    def __init__(self, given: Sequence[Tensor] = ()) -> None:
        self._given = list(given)
        self._kept = Appended([(each,) for each in given])

    def begins(self, value: list[Any]) -> bool:
        """Whether the list begins with what was returned before, and goes on with tensors."""
        new = value[len(self._given) :]
        same = len(value) >= len(self._given) and all(map(is_, value, self._given))
        return same and all([isinstance(each, Tensor) for each in new])

    def told(self, value: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the list for a state, and the metric's own."""
        for each in _together(value[len(self._given) :]):
            self._kept.append(each)
        self._given = [each for (each,) in self._kept.parts()]
        return list(self._given), list(self._given)


def _joins(part: Any, name: str, value: list[Any]) -> bool:
    from torchmetrics.utilities.data import dim_zero_cat

    return part._reductions[name] is dim_zero_cat and all([isinstance(each, Tensor) for each in value])


def _together(tensors: list[Tensor]) -> list[Tensor]:
    """Join into one piece, if all have one shape and kind."""
    rows = [(each.reshape(1) if each.ndim == 0 else each).detach() for each in tensors]
    alike = len({(each.shape[1:], each.dtype, each.device) for each in rows}) == 1
    return [torch.cat(rows)] if alike else rows


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def _version(value: Any) -> object:
    """A value that equals an earlier one only if the object has certainly not changed."""
    if isinstance(value, Tensor) and not value.is_inference():
        return value._version
    return 0 if isinstance(value, (int, float, str)) else object()


def _fit(metric: str, part: Any, saved: Any) -> dict[str, Any]:
    states = saved["states"]
    if states.keys() != part._defaults.keys():
        raise StateError(
            f"the state of {metric} holds {sorted(states)}, but this {type(part).__name__} has "
            f"{sorted(part._defaults)}; load it with the same version of torchmetrics and the same arguments"
        )
    for name, default in part._defaults.items():
        kind = list if isinstance(default, list) else Tensor
        if not isinstance(states[name], kind):
            raise StateError(f"the state of {metric} holds as {name} {a_kind(states[name])}")
    moved = {
        name: [_at(each, part) for each in value] if isinstance(value, list) else _at(value, part)
        for name, value in states.items()
    }
    return {"updates": int(saved["updates"]), "states": moved}


def _at(value: Any, part: Any) -> Any:
    return value.to(part.device) if isinstance(value, Tensor) else value


def _merged(part: Any, name: str, ours: Any, theirs: Any, updates: list[int]) -> Any:
    from torchmetrics.utilities import data

    rule = part._reductions[name]
    if isinstance(ours, list) and rule in (None, data.dim_zero_cat):
        return ours + theirs
    if rule is data.dim_zero_sum:
        return ours + theirs
    if rule is data.dim_zero_max:
        return torch.maximum(ours, theirs)
    if rule is data.dim_zero_min:
        return torch.minimum(ours, theirs)
    if rule is data.dim_zero_cat:
        return torch.cat([ours, theirs])
    if rule is data.dim_zero_mean and any(updates):
        return (updates[0] * ours + updates[1] * theirs) / (updates[0] + updates[1])
    raise StateError(
        f"{type(part).__name__} has no rule for merging its {name} with that of other samples; evaluate it "
        "in one process"
    )


def torchmetrics(who: str) -> Any:
    """Return the package, or raise an error that says how to install it.

    Args:
        who: the metrics that need it, in the plural.
    """
    try:
        return importlib.import_module("torchmetrics")
    except ImportError as error:
        raise ImportError(
            f"{who} need torchmetrics, which does not load here ({error}); install it: "
            "pip install 'torchmetrics>=1.4'"
        ) from error
