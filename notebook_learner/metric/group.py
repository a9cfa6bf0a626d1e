"""The metrics of one split: collected on the device at every step, read from it in blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import StateError, StepError
from ..event.values import Column
from .base import AnyMetric, Floats, Metric, Reading, Scalar, StepContext, TextMetric
from .checks import checked, checked_type, require_fields
from .transfer import to_host

Update = Callable[[Any], tuple[Scalar, Scalar]]
Step = tuple[Update, Callable[[Scalar], None], Callable[[Scalar], None]]


class MetricGroup:
    """Runs the metrics of one split.

    `collect` belongs to the step and reads nothing from the device; `read` takes what was collected
    since the last `read` as columns of a block and adds it to the epoch's sums. The sums run step by
    step in float64, so the epoch's values do not depend on where the blocks were cut.

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
        self.metrics = tuple(metrics)
        names = [metric.name for metric in self.metrics]
        if len(set(names)) < len(names):
            raise ValueError(f"two metrics of a split share a name, which names their log file: {names}")
        self._numeric = [metric for metric in self.metrics if isinstance(metric, Metric)]
        self._collected = [metric for metric in self._numeric if not isinstance(metric, Reading)]
        self._texts = [metric for metric in self.metrics if isinstance(metric, TextMetric)]
        self._values: list[list[Scalar]] = [[] for _ in self._collected]
        self._weights: list[list[Scalar]] = [[] for _ in self._collected]
        self._steps = tuple(self._bind(index, metric.update) for index, metric in enumerate(self._collected))
        self._sums = self._no_sums()
        self._pending = 0
        self._seen: set[type] = set()
        # Reused at every step (0.7 us); nothing to guard where nothing is collected.
        self._no_grad: AbstractContextManager[Any] = torch.no_grad() if self._collected else nullcontext()

    @property
    def pending(self) -> int:
        """How many collected steps were not read yet."""
        return self._pending

    def attach(self, context: StepContext) -> None:
        """Tell every metric whom to ask about the step."""
        for metric in self.metrics:
            metric.context = context

    def collect(self, item: Any) -> None:
        """Take one step's output. When this raises, nothing of the step is kept here."""
        pair: Any = (0.0, 0)
        try:
            if type(item) not in self._seen:
                self._meet(item)
                return
            with self._no_grad:
                for update, add_value, add_weight in self._steps:
                    pair = update(item)
                    value, weight = pair
                    add_value(value)
                    add_weight(weight)
        except BaseException as error:
            self._take_back(error, item, pair)
            raise
        self._pending += 1

    def read(self) -> tuple[dict[str, Column], dict[str, str]]:
        """Read what was collected since the last read, and take one sample of each reading and text.

        This is where the host waits for the device. With nothing pending there is nothing to read.
        """
        if not self._pending:
            return {}, {}
        values, weights = self._fetch()
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
        # Only now, so that a metric that raises takes no step with it.
        self._sums = sums
        self._drop()
        return {metric.name: columns[metric.name] for metric in self._numeric}, texts

    def finals(self) -> dict[str, float]:
        """Return the epoch's value of each weighted metric. Everything collected must have been read."""
        self._require_read("the epoch's values")
        with torch.no_grad():
            return {metric.name: self._final(metric) for metric in self._collected if metric.weighted}

    def keep(self, steps: int) -> None:
        """Forget collected steps beyond the first so many of those not read yet."""
        self._pending = min(self._pending, steps)
        self._cut()

    def reset(self) -> None:
        """Begin a split: forget sums, unread steps and what the metrics accumulated."""
        self._drop()
        self._sums = self._no_sums()
        for metric in self._numeric:
            metric.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch so far, as plain data that later steps leave alone."""
        self._require_read("the state")
        states = {metric.name: _plain(metric.state_dict(), metric.name) for metric in self._numeric}
        return {"sums": {name: list(pair) for name, pair in self._sums.items()}, "metrics": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. The state stays usable for another time."""
        self._require_read("to load a state")
        sums, states = state["sums"], state["metrics"]
        _match("sums", sums, self._sums)
        _match("metrics", states, [metric.name for metric in self._numeric])
        self._sums = {name: (float(total), float(weight)) for name, (total, weight) in sums.items()}
        for metric in self._numeric:
            metric.load_state_dict(_plain(states[metric.name], metric.name))

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
        """Collect the first output of its type, with the checks that later ones are spared."""
        require_fields(self._collected, item)
        with self._no_grad:
            pairs = [checked(metric, metric.update(item)) for metric in self._collected]
        steps = list(self._steps)
        for index, (value, weight) in enumerate(pairs):
            if _needs_grad(value) or _needs_grad(weight):
                # Kept as it is, it would hold the step's whole graph in memory until the next read.
                steps[index] = self._bind(index, _detached(self._collected[index].update))
                value, weight = _detach(value), _detach(weight)
            self._values[index].append(value)
            self._weights[index].append(weight)
        self._steps = tuple(steps)
        self._seen.add(type(item))
        self._pending += 1

    def _take_back(self, error: BaseException, item: Any, pair: Any) -> None:
        """Drop the failed step, which some metrics have a value of and others not; say what is wrong."""
        done = sum(len(values) > self._pending for values in self._values)
        self._cut()
        if isinstance(error, (AttributeError, TypeError, ValueError)) and not isinstance(error, StepError):
            require_fields(self._collected, item)
            # The pair is the last that came back: the failing metric's own, unless its update raised.
            checked_type(self._collected[done], pair)

    def _fetch(self) -> tuple[list[Floats], list[Floats]]:
        try:
            arrays = to_host([*self._values, *self._weights])
        except Exception:
            # A step that returned no number, or else an error of the device, which shows at its first wait.
            for metric, values, weights in zip(self._collected, self._values, self._weights, strict=True):
                for pair in zip(values, weights, strict=True):
                    checked(metric, pair)
            raise
        return arrays[: len(self._collected)], arrays[len(self._collected) :]


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
    """Add a block, step by step as if it had been the whole epoch (numpy's sum() adds in pairs)."""
    # Steps of weight 0 have no value, and 0 times the NaN they carry would be one.
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


def _plain(value: Any, metric: str) -> Any:
    """Copy a state, so that neither side's later steps change the other's."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _plain(item, metric) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, metric) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise StateError(
        f"{metric}.state_dict() holds a {type(value).__name__}, which a checkpoint cannot keep; use tensors, "
        "numbers, strings, lists and dicts"
    )
