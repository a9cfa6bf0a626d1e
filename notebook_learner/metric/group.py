"""The metrics of one split: collected on the device at every step, read from it in blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, KeysView, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..errors import StateError, StepError, a_kind
from ..event.values import Column
from .base import (
    AccumulatedText,
    AnyMetric,
    Counted,
    Floats,
    Metric,
    Reading,
    Scalar,
    StepContext,
    TextMetric,
)
from .inputs import Inputs
from .output_checks import (
    Update,
    adapted,
    advises,
    checked,
    checked_type,
    gives_one_number,
    has_fields,
    require_fields,
    weighted,
)
from .rows import ABSENT, Rows, accumulates, counts_of, merged
from .sheets import Content, content_of
from .step_values import Logged
from .tensors import alike, bring, to_host
from .torch_metric import LoggedObject, object_in, place_in

Step = tuple[Update, Callable[[Scalar], None], Callable[[Scalar], None]]


class MetricGroup:
    """Runs the metrics of one split.

    `collect` runs in the step and reads nothing from the device. `read` returns what was collected since the
    last `read` as columns of a block, and adds it to the epoch's sums. The sums run step by step in float64,
    so the epoch's values do not depend on the borders of the blocks.

    >>> from types import SimpleNamespace as Item
    >>> from notebook_learner.metric import Loss
    >>> group = MetricGroup([Loss()])
    >>> for loss, samples in [(0.5, 32), (2.0, 8)]:
    ...     group.collect(Item(loss=torch.tensor(loss), weight=samples))
    >>> columns, texts = group.read()
    >>> columns["Loss"].values.tolist(), group.finals()
    ([0.5, 2.0], {'Loss': 0.8})
    """

    def __init__(self, metrics: Sequence[AnyMetric]) -> None:
        self._context: StepContext | None = None
        self.owner: Callable[[], Any] = _nobody
        """The model, in which a metric object that steps log has its place."""
        self._pending = 0
        self._collected: list[Metric] = []
        self._values: list[list[Scalar]] = []
        self._weights: list[list[Scalar]] = []
        self._arrange(metrics)
        self._sums = self._no_sums()

    def _arrange(self, metrics: Sequence[AnyMetric]) -> None:
        """Sort the metrics by what a step does with them. Collected values stay with their metric."""
        before = dict(zip(self._collected, zip(self._values, self._weights, strict=True), strict=True))
        self.metrics = tuple(metrics)
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"two metrics of a split share a name, which names their log file: {names}")
        self._numeric = [metric for metric in self.metrics if isinstance(metric, Metric)]
        self._collected = [metric for metric in self._numeric if not isinstance(metric, Reading)]
        self._texts = [metric for metric in self.metrics if isinstance(metric, TextMetric)]
        told = [metric for metric in self._texts if isinstance(metric, AccumulatedText)]
        self._stateful: list[Metric | AccumulatedText] = [*self._numeric, *told]
        self._watches = tuple(adapted(metric) for metric in told)
        self._logged = {metric.name: metric for metric in self.metrics if isinstance(metric, Logged)}
        pairs = [before.get(metric) or self._blank() for metric in self._collected]
        self._values = [values for values, _ in pairs]
        self._weights = [weights for _, weights in pairs]
        self._steps = tuple(
            self._bind(index, adapted(metric)) for index, metric in enumerate(self._collected)
        )
        self._seen: dict[type, bool] = {}
        """The types of outputs that were met, and whether metrics look for their inputs elsewhere, too."""
        # Reused at every step (0.7 us); nothing to guard if nothing is collected.
        self._no_grad: AbstractContextManager[Any] = (
            torch.no_grad() if self._collected or told else nullcontext()
        )

    def _blank(self) -> tuple[list[Scalar], list[Scalar]]:
        """No value, for each step that was collected before a metric was added."""
        return [float("nan")] * self._pending, [0] * self._pending

    @property
    def pending(self) -> int:
        """The number of collected steps that were not read yet."""
        return self._pending

    def attach(self, context: StepContext) -> None:
        """Give every metric the object that answers questions about the step."""
        self._context = context
        for metric in self.metrics:
            metric.context = context

    def log(self, name: str, value: Any) -> bool:
        """Take a value of the current step; return whether this name is new.

        Raises:
            StepError: the name is a registered metric's, or the value is not a number.
        """
        known = self._logged.get(name)
        if known is not None and getattr(known, "metric", None) is object_in(value):
            known.put(value)
            return False
        if known is None and any(metric.name == name for metric in self.metrics):
            raise StepError(
                f"log({name!r}, ...): there is a metric {name!r} already, which the learner measures; log by "
                "another name, or leave that metric out of the builder"
            )
        logged = Logged(name) if object_in(value) is None else self._placed(name, value)
        logged.put(value)
        self._exchange([*(each for each in self.metrics if each is not known), logged])
        return known is None

    def _placed(self, name: str, metric: Any) -> LoggedObject:
        owner = self.owner()
        place = None if owner is None else place_in(owner, metric)
        if place is None:
            raise StepError(
                f"log({name!r}, ...) was given {a_kind(metric)} that is no attribute of the model, so a new "
                "process would not find it; set it there (self.accuracy = ...), or log its value"
            )
        return LoggedObject(name, place, owner)

    @property
    def stateful(self) -> set[str]:
        """The names of the metrics that have an entry in `state_dict`."""
        return {metric.name for metric in self._stateful}

    @property
    def logged(self) -> KeysView[str]:
        """The names of the values that steps logged."""
        return self._logged.keys()

    @property
    def objects(self) -> dict[str, LoggedObject]:
        """Those of them that are metric objects."""
        return {name: each for name, each in self._logged.items() if isinstance(each, LoggedObject)}

    def _hold(self, names: Sequence[str], places: Mapping[str, str]) -> None:
        """Keep exactly these logged metrics, in addition to the registered ones."""
        logged = [self._held(name, places.get(name)) for name in names]
        self._exchange([*(metric for metric in self.metrics if not isinstance(metric, Logged)), *logged])

    def _held(self, name: str, place: str | None) -> Logged:
        known, owner = self._logged.get(name), self.owner()
        if place is None:
            return Logged(name) if known is None or isinstance(known, LoggedObject) else known
        try:
            there = object_in(owner.get_submodule(place))
        except AttributeError:
            there = None
        if there is None:
            raise StateError(
                f"this state has values of {place!r}, a metric object that the model does not have now"
            )
        same = isinstance(known, LoggedObject) and known.metric is there
        return known if known is not None and same else LoggedObject(name, place, owner)

    @contextmanager
    def beside(self, metric: AnyMetric) -> Iterator[None]:
        """Inside, measure one more metric."""
        self._exchange([*self.metrics, metric])
        try:
            yield
        finally:
            self._exchange([each for each in self.metrics if each is not metric])

    def _exchange(self, metrics: Sequence[AnyMetric]) -> None:
        """Use these metrics from here on; those that stay keep what they measured."""
        self._arrange(metrics)
        self._sums = {name: self._sums.get(name, nothing) for name, nothing in self._no_sums().items()}
        if self._context is not None:
            self.attach(self._context)

    def collect(self, item: Any) -> None:
        """Take one step's output. If this raises, nothing of the step is kept here."""
        pair: Any = (0.0, 0)
        try:
            through = self._seen.get(type(item))
            if through is None:
                self._meet(item)
                return
            if through:
                item = Inputs(item, self._batch)
            with self._no_grad:
                for update, add_value, add_weight in self._steps:
                    pair = update(item)
                    value, weight = pair
                    add_value(value)
                    add_weight(weight)
                for watch in self._watches:
                    watch(item)
        except BaseException as error:
            self._take_back(error, item, pair)
            raise
        self._pending += 1

    @property
    def _batch(self) -> Any:
        return getattr(self._context, "batch", None)

    def skip(self) -> None:
        """Count a step for which this rank has no sample."""
        for logged in self._logged.values():
            logged.drop()
        for metric, values, weights in zip(self._collected, self._values, self._weights, strict=True):
            values.append(cast(Scalar, ABSENT) if isinstance(metric, Counted) else float("nan"))
            weights.append(0)
        self._pending += 1

    def rows(self) -> Rows:
        """Return and forget what was collected and accumulated since the last call, for rank 0 to add to its
        own."""
        steps, (values, weights) = self._pending, self._fetch()
        self._drop()
        names = [metric.name for metric in self._collected]
        states = {}
        for metric in self._stateful:
            if accumulates(metric):
                states[metric.name] = _told(metric, metric.state_dict())
                metric.reset()
        return Rows(
            steps, dict(zip(names, values, strict=True)), dict(zip(names, weights, strict=True)), states
        )

    def read(
        self, others: Sequence[Rows] = (), beside: Sequence[list[Any]] = ()
    ) -> tuple[dict[str, Column], dict[str, str]]:
        """Read what was collected since the last read, and read each reading and text once.

        Here the host waits for the device. If no step is pending, there is nothing to read.

        Args:
            others: what other ranks measured in the same steps.
            beside: lists of others' scalars, which come in the same transfer: numbers replace tensors.
        """
        if not self._pending:
            return {}, {}
        values, weights = self._fetch(beside)
        if others:
            values, weights = self._together(values, weights, others)
        columns: dict[str, Column] = {}
        sums = dict(self._sums)
        with np.errstate(all="ignore"):
            for metric, raw, weight in zip(self._collected, values, weights, strict=True):
                columns[metric.name] = _column(metric, raw, weight)
                if metric.weighted:
                    sums[metric.name] = _add(sums[metric.name], _totals(metric, raw, weight), weight)
        for reading in self._numeric:
            if isinstance(reading, Reading):
                columns[reading.name] = Column(np.full(self._pending, reading.sample(), dtype=np.float64))
        texts = {metric.name: metric.text() for metric in self._texts}
        # Only now, so that a metric that raises does not lose a step.
        self._sums = sums
        for metric, raw in zip(self._collected, values, strict=True):
            if isinstance(metric, Counted):
                metric.add(raw)
        self._drop()
        return {metric.name: columns[metric.name] for metric in self._numeric}, texts

    def finals(self) -> dict[str, float]:
        """Return the epoch's value of each weighted metric. Everything collected must have been read."""
        self._require_read("the epoch's values")
        with torch.no_grad():
            return {metric.name: self._final(metric) for metric in self._collected if metric.weighted}

    def sheets(self) -> dict[str, Content]:
        """Return what each text metric shows of the whole epoch, by the metric's name."""
        told = [metric for metric in self._texts if isinstance(metric, AccumulatedText)]
        with torch.no_grad():
            return {metric.name: content_of(metric) for metric in told}

    def keep(self, steps: int) -> None:
        """Forget the unread steps after the first `steps`."""
        self._pending = min(self._pending, steps)
        self._cut()
        for metric in self._logged.values():
            metric.drop()  # the failed step had logged its value already

    def reset(self) -> None:
        """Begin a split: forget sums, unread steps and what the metrics accumulated."""
        self._drop()
        self._sums = self._no_sums()
        for metric in self._stateful:
            metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch so far, as plain data that later steps leave alone."""
        self._require_read("the state")
        states = {metric.name: _told(metric, metric.state_dict()) for metric in self._stateful}
        sums = {name: list(pair) for name, pair in self._sums.items()}
        return {"sums": sums, "metrics": states, "logged": list(self.logged), **self._told_places()}

    def _told_places(self) -> dict[str, Any]:
        places = {name: each.place for name, each in self.objects.items()}
        return {"objects": places} if places else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`. The state can be used again."""
        self._require_read("to load a state")
        sums, states = state["sums"], state["metrics"]
        places = state.get("objects", {})
        if state["logged"] != list(self.logged) or places or self.objects:
            self._hold(state["logged"], places)
        _match("sums", sums, self._sums)
        _match("metrics", states, [metric.name for metric in self._stateful])
        self._sums = {name: (float(total), float(weight)) for name, (total, weight) in sums.items()}
        for metric in self._stateful:
            metric.load_state_dict(_told(metric, states[metric.name]))

    def _bind(self, index: int, update: Update) -> Step:
        # Bound once, so that a step looks up no name; the lists must stay the same objects.
        return update, self._values[index].append, self._weights[index].append

    def _no_sums(self) -> dict[str, tuple[float, float]]:
        return {metric.name: (0.0, 0.0) for metric in self._collected if metric.weighted}

    def _final(self, metric: Metric) -> float:
        value = metric.compute()
        if value is None:
            return metric.mean(*self._sums[metric.name])
        return float(value.item() if isinstance(value, Tensor) else value)

    def _require_read(self, purpose: str) -> None:
        if self._pending:
            raise RuntimeError(
                f"{self._pending} collected steps are not read yet, so {purpose} would miss them; "
                "call read() first (or reset() to forget them)"
            )

    def _drop(self) -> None:
        self._pending = 0
        self._cut()

    def _cut(self) -> None:
        for scalars in (*self._values, *self._weights):
            del scalars[self._pending :]

    def _meet(self, item: Any) -> None:
        """Collect the first output of its type, with the checks that later outputs do not need."""
        made, metrics = item, list[AnyMetric]([*self._collected, *self._texts])
        steps = list(self._steps)
        # A cell finds its names itself, and says where it is in doubt.
        if not (self._context is None or advises(made) or has_fields(metrics, made)):
            item = Inputs(made, self._batch)
        require_fields(metrics, item)
        with self._no_grad:
            updates = [adapted(metric) for metric in self._collected]
            pairs = list[Any]()  # no comprehension: before Python 3.12 its frame would hold the item's memory
            for index, metric in enumerate(self._collected):
                pair: Any = updates[index](item)
                if self._context is not None and gives_one_number(metric, pair):
                    updates[index] = weighted(metric, updates[index])
                    steps[index] = self._bind(index, updates[index])
                    pair = pair, self._context.samples
                pairs.append(checked(metric, pair))
            for watch in self._watches:
                watch(item)
        for index, (value, weight) in enumerate(pairs):
            if _needs_grad(value) or _needs_grad(weight):
                # Stored as it is, it would keep the step's whole graph in memory until the next read.
                steps[index] = self._bind(index, _detached(updates[index]))
                value, weight = _detach(value), _detach(weight)
            self._values[index].append(value)
            self._weights[index].append(weight)
        self._steps = tuple(steps)
        self._seen[type(made)] = item is not made
        self._pending += 1

    def _take_back(self, error: BaseException, item: Any, pair: Any) -> None:
        """Drop the failed step, of which only some metrics have a value; say what is wrong."""
        done = sum(len(values) > self._pending for values in self._values)
        self._cut()
        if isinstance(error, (AttributeError, TypeError, ValueError)) and not isinstance(error, StepError):
            require_fields(self._collected, item)
            # The pair is the last one returned: the failing metric's own, unless its update raised.
            if done < len(self._collected):
                checked_type(self._collected[done], pair)

    def _together(
        self, values: list[Floats], weights: list[Floats], others: Sequence[Rows]
    ) -> tuple[list[Floats], list[Floats]]:
        with np.errstate(all="ignore"):
            pairs = [
                merged(metric, raw, weight, others)
                for metric, raw, weight in zip(self._collected, values, weights, strict=True)
            ]
        for metric in self._stateful:
            for each in others:
                if metric.name in each.states:
                    metric.merge(each.states[metric.name])
        return [raw for raw, _ in pairs], [weight for _, weight in pairs]

    def _fetch(self, beside: Sequence[list[Any]] = ()) -> tuple[list[Floats], list[Floats]]:
        counted = [isinstance(metric, Counted) for metric in self._collected]
        numbers = [[] if host else kept for host, kept in zip(counted, self._values, strict=True)]
        firsts = alike(self._weights)
        own = [
            kept if first == at else []
            for at, (kept, first) in enumerate(zip(self._weights, firsts, strict=True))
        ]
        try:
            if beside:
                bring([*numbers, *own, *beside])
            arrays = to_host([*numbers, *own])
        except Exception:
            # A step that returned no number, or an error of the device, which shows at the first wait for it.
            for metric, values, weights in zip(self._collected, self._values, self._weights, strict=True):
                for pair in zip(values, weights, strict=True):
                    checked(metric, pair)
            raise
        raws, behind = arrays[: len(self._collected)], arrays[len(self._collected) :]
        behind = [behind[first] for first in firsts]
        for index, metric in enumerate(self._collected):
            if isinstance(metric, Counted):
                raws[index] = counts_of(metric, self._values[index])
                behind[index] = (
                    metric.weights(raws[index]) if raws[index].shape[1] else np.zeros(len(raws[index]))
                )
        return raws, behind


def _nobody() -> None:
    pass


def _detach(scalar: Scalar) -> Scalar:
    return scalar.detach() if isinstance(scalar, Tensor) else scalar


def _needs_grad(scalar: Scalar) -> bool:
    return isinstance(scalar, Tensor) and scalar.requires_grad


def _detached(update: Update) -> Update:
    def detaching(item: Any) -> tuple[Scalar, Scalar]:
        value, weight = update(item)
        return _detach(value), _detach(weight)

    return detaching


def _column(metric: Metric, raw: Floats, weights: Floats) -> Column:
    values = _per_step(metric, "values", metric.values(raw, weights), len(raw))
    return Column(values, weights if metric.weighted else None)


def _totals(metric: Metric, raw: Floats, weights: Floats) -> Floats:
    return _per_step(metric, "totals", metric.totals(raw, weights), len(raw))


def _per_step(metric: Metric, method: str, array: Any, count: int) -> Floats:
    floats = np.asarray(array, dtype=np.float64)
    if floats.shape != (count,):
        raise StepError(
            f"{metric.name}.{method} returned shape {floats.shape} for {count} steps; it must return one "
            "number a step, in an array as long as the ones it was given"
        )
    return floats


def _add(sums: tuple[float, float], totals: Floats, weights: Floats) -> tuple[float, float]:
    """Add a block, step by step as if it were the whole epoch (numpy's sum() adds in pairs)."""
    # Steps of weight 0 have no value: their NaN times 0 would still be NaN.
    counted = weights != 0
    total = np.add.accumulate(np.concatenate(([sums[0]], totals[counted])))[-1]
    weight = np.add.accumulate(np.concatenate(([sums[1]], weights[counted])))[-1]
    return float(total), float(weight)


def _match(what: str, given: Mapping[str, Any], own: Collection[str]) -> None:
    if set(given) != set(own):
        raise StateError(
            f"the {what} of this state belong to the metrics {sorted(given)}, but this split has "
            f"{sorted(own)}; load it with the same metrics, or begin the split anew with reset()"
        )


def _told(metric: Metric | AccumulatedText, state: Any) -> Any:
    """A copy of a state, so that later steps of one side do not change the other."""
    shared = isinstance(metric, Metric) and metric.append_only
    return _plain(state, metric.name, Tensor.detach if shared else _cloned)


def _cloned(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _plain(value: Any, metric: str, take: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return take(value)
    if isinstance(value, Mapping):
        return {key: _plain(item, metric, take) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, metric, take) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise StateError(
        f"{metric}.state_dict() holds {a_kind(value)}, which a checkpoint cannot keep; use tensors, "
        "numbers, strings, lists and dicts"
    )
