"""The data of a display, computed from the events: position, latest values, averages, pace.

It keeps only sums and final values, so it stays small in a long run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..event import (
    Column,
    EpochEnded,
    Event,
    MetricAdded,
    MetricBlock,
    MetricInfo,
    Notice,
    Rewound,
    RunOpened,
    SetProgress,
    Split,
    SplitEnded,
    SplitStarted,
    Status,
    StatusChanged,
)
from .text import place

WINDOW_SECONDS = 5.0
"""Seconds over which the rate is averaged: long enough that the shown number is steady."""
VALID_SHARE = 1 / 3
"""The assumed time of a validation step as a share of a training step, before the first one: no backward."""


class Pace:
    """Steps and seconds of both splits. Only the seconds within steps count, not pauses.

    The rate is that of training, also while the run validates. Steps of unknown duration (those of
    a run that kept no times) do not count. A rewind keeps the rate: steps take as long as before.
    """

    def __init__(self) -> None:
        self.lengths: dict[Split, int] = {}
        """Steps of a pass, if known."""
        self._recent: dict[Split, deque[tuple[int, float, float]]] = {"train": deque(), "valid": deque()}
        self._by_epoch: dict[int, float] = {}

    def add(self, block: MetricBlock) -> None:
        """Fold a block in."""
        if block.seconds <= 0:
            return
        self.count(block)
        recent = self._recent[block.split]
        recent.append((block.count, _samples(block), block.seconds))
        while len(recent) > 1 and sum(entry[2] for entry in recent) > WINDOW_SECONDS:
            recent.popleft()

    def count(self, block: MetricBlock) -> None:
        """Add its seconds to those of its epoch."""
        self._by_epoch[block.epoch] = self._by_epoch.get(block.epoch, 0.0) + block.seconds

    def start_over(self) -> None:
        """Forget the epochs' seconds: they will be added again."""
        self._by_epoch.clear()

    @property
    def elapsed(self) -> float:
        """Seconds spent in steps."""
        return sum(self._by_epoch.values())

    def epoch(self, number: int) -> float:
        """Seconds spent in the steps of an epoch."""
        return self._by_epoch.get(number, 0.0)

    @property
    def steps_per_second(self) -> float | None:
        """The recent rate of training."""
        step = self._step("train")
        return 1 / step if step else None

    @property
    def samples_per_second(self) -> float | None:
        """The recent rate in samples; None without a Loss, whose weights give the samples of a step."""
        recent = self._recent["train"]
        samples = sum(entry[1] for entry in recent)
        return samples / sum(entry[2] for entry in recent) if samples > 0 else None

    def left_in_pass(self, split: Split, step: int, total: int | None) -> float | None:
        """Seconds until the current pass ends."""
        each = self._step(split)
        return None if total is None or each is None else max(total - step, 0) * each

    def left(self, split: Split, step: int, total: int | None, epochs_after: int) -> float | None:
        """Seconds until the run ends. The validation is included once its length is known."""
        train, valid = self.lengths.get("train"), self.lengths.get("valid", 0)
        after = max(epochs_after, 0)
        if split == "train":
            here, train_steps, valid_steps = total, 0, valid
        else:
            here, train_steps, valid_steps = valid if total is None else total, 0, 0
        if here is None or (train is None and after > 0):
            return None
        here = max(here - step, 0)
        train_steps += after * (train or 0) + (here if split == "train" else 0)
        valid_steps += after * valid + (here if split == "valid" else 0)
        each, valid_each = self._step("train"), self._step("valid")
        if each is None and (train_steps or valid_each is None):
            return None
        return train_steps * (each or 0.0) + valid_steps * (valid_each or 0.0)

    def _step(self, split: Split) -> float | None:
        """The recent seconds per step."""
        recent = self._recent[split]
        if recent:
            return sum(entry[2] for entry in recent) / sum(entry[0] for entry in recent)
        train = self._step("train") if split == "valid" else None
        return None if train is None else VALID_SHARE * train


def _samples(block: MetricBlock) -> float:
    """The number of samples in a block: Loss is weighted by samples, so its weights count them."""
    loss = block.columns.get("Loss")
    return 0.0 if loss is None or loss.weights is None else float(loss.weights.sum())


NAN = float("nan")


@dataclass(slots=True)
class LastReading:
    """One metric during one pass."""

    last: float | None = None
    total: float = 0.0
    weight: float = 0.0

    @property
    def mean(self) -> float | None:
        """The average over the pass so far; None before the first value."""
        return self.total / self.weight if self.weight else None

    def add(self, column: Column) -> None:
        """Add a block. Rows without a value (weight 0, or a NaN reading) are skipped."""
        values, weights = column.values, column.weights
        if weights is None:
            values = values[~np.isnan(values)]
            self.total += float(values.sum())
            self.weight += len(values)
        else:
            present = weights != 0
            if not present.all():
                values, weights = values[present], weights[present]
            self.total += float(values @ weights)
            self.weight += float(weights.sum())
        if len(values):
            self.last = float(values[-1])


@dataclass(slots=True)
class Tally:
    """The state of a run, as a display shows it."""

    run: RunOpened | None = None
    status: Status = "ready"
    reason: str = ""
    epoch: int = 1
    split: Split = "train"
    step: int = 0
    total: int | None = None
    totals: dict[Split, int] = field(default_factory=dict)
    """The number of steps in a pass of each split, from the loaders."""
    num_epochs: int = 0
    epochs_done: int = 0
    pace: Pace = field(default_factory=Pace)
    readings: dict[Split, dict[str, LastReading]] = field(default_factory=dict)
    passes: dict[Split, int] = field(default_factory=dict)
    """The epoch whose values `readings` holds."""
    ended: dict[Split, int] = field(default_factory=dict)
    """The last epoch in which a pass of the split ended."""
    finals: dict[Split, dict[str, dict[int, float]]] = field(default_factory=dict)
    bests: dict[tuple[str, Split], tuple[float, int] | None] = field(default_factory=dict)
    """What is known of `best`: a panel asks twice a second, and a long run has many epochs."""
    texts: dict[str, str] = field(default_factory=dict)
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=3))
    infos: dict[tuple[str, str], MetricInfo] = field(default_factory=dict)
    tour: SetProgress | None = None
    """The progress on other data, while it is evaluated."""
    fresh: bool = False
    """Whether a pass has ended since the last summary was shown."""

    def handle(self, event: Event, /) -> None:
        """Fold one event in."""
        match event:
            case MetricBlock():
                self._block(event)
            case SplitStarted():
                self._split_started(event)
            case SplitEnded():
                self._finals(event.epoch, event.split, event.finals)
                self.fresh = True
            case EpochEnded():
                self.epochs_done, self.num_epochs = event.epoch, event.num_epochs
            case StatusChanged():
                self._status(event)
            case Notice():
                self.notices.append(event)
            case Rewound():
                self._rewound(event)
            case MetricAdded():
                self.infos[event.info.name, event.info.split] = event.info
                self.bests.clear()
            case SetProgress():
                self.tour = None if event.over else event
            case RunOpened():
                self._opened(event)
            case _:
                pass  # a kind of event that did not exist when this was written

    def stands_behind(self, block: MetricBlock) -> None:
        """The run has taken these steps; what they measured is folded in later."""
        self._stand(block.epoch, block.split, block.last)

    # What a display reads

    def names(self) -> list[str]:
        """The numeric metrics, each once, in the order of registration."""
        return list(dict.fromkeys(name for (name, _), info in self.infos.items() if info.kind == "numeric"))

    def info(self, name: str, split: Split) -> MetricInfo | None:
        """The info of a metric of a split; None if the split does not have the metric."""
        return self.infos.get((name, split))

    def unit(self, name: str) -> str:
        """The unit of a metric, from any split that has it."""
        info = self.info(name, "train") or self.info(name, "valid")
        return info.unit if info else ""

    def last(self, name: str, split: Split) -> float | None:
        """The value at the latest step; None before the first one."""
        reading = self.readings.get(split, {}).get(name)
        return reading.last if reading else None

    def average(self, name: str, split: Split) -> float | None:
        """The current epoch's value: the final one if the pass has ended, else the average so far."""
        final = self.finals.get(split, {}).get(name, {}).get(self.passes.get(split, 0))
        if final is not None:
            return final
        reading = self.readings.get(split, {}).get(name)
        return reading.mean if reading else None

    def open(self, split: Split) -> bool:
        """Whether the split's pass still runs, so that its averages are not final."""
        return self.passes.get(split, 0) != self.ended.get(split, 0)

    def best(self, name: str, split: Split = "valid") -> tuple[float, int] | None:
        """The best final value and its epoch; None if the metric has no direction or no final value."""
        if (name, split) not in self.bests:
            self.bests[name, split] = self._best_of(name, split)
        return self.bests[name, split]

    def _best_of(self, name: str, split: Split) -> tuple[float, int] | None:
        info = self.info(name, split)
        finals = self.finals.get(split, {}).get(name, {})
        known = {epoch: value for epoch, value in finals.items() if value == value}
        if info is None or info.higher_is_better is None or not known:
            return None
        choose = max if info.higher_is_better else min
        value = choose(known.values())
        return value, min(epoch for epoch, other in known.items() if other == value)

    def place(self) -> str:
        """The position of the run, in words."""
        return place(self.epoch, self.split, self.step, self.total)

    @property
    def progress(self) -> float:
        """The finished share of the run, by training steps."""
        if self.status == "finished":
            return 1.0
        if not self.num_epochs:
            return 0.0
        inside = 1.0 if self.split == "valid" else self.step / self.total if self.total else 0.0
        return min((self.epoch - 1 + inside) / self.num_epochs, 1.0)

    def seconds_left(self) -> float | None:
        """The estimated seconds until the run ends."""
        return self.pace.left(self.split, self.step, self.total, self.num_epochs - self.epoch)

    # `EpochSource`: what a summary reads

    def metrics(self, split: Split) -> list[str]:
        """The numeric metrics of a split."""
        return [name for (name, of), info in self.infos.items() if of == split and info.kind == "numeric"]

    def epoch_numbers(self, split: Split) -> NDArray[np.int64]:
        """The epochs with final values."""
        numbers = {epoch for finals in self.finals.get(split, {}).values() for epoch in finals}
        return np.array(sorted(numbers), dtype=np.int64)

    def epochs(self, name: str, split: Split) -> NDArray[np.float64]:
        """The final values of a metric; NaN for an epoch without one."""
        finals = self.finals.get(split, {}).get(name, {})
        return np.array(
            [finals.get(int(epoch), NAN) for epoch in self.epoch_numbers(split)], dtype=np.float64
        )

    # How events change it

    def _opened(self, event: RunOpened) -> None:
        self.run, self.num_epochs = event, event.num_epochs
        self.status, self.reason = "ready", ""
        self.epoch, self.split, self.step, self.total = 1, "train", 0, None
        self.infos = {(info.name, info.split): info for info in event.metrics}
        self._forget()
        self.pace, self.totals = Pace(), {}
        self.notices.clear()

    def _forget(self) -> None:
        self.epochs_done = 0
        self.readings, self.passes, self.ended, self.finals, self.texts = {}, {}, {}, {}, {}
        self.bests.clear()

    def _stand(self, epoch: int, split: Split, step: int, total: int | None = None) -> None:
        """Set the position. Without `total`, keep that of the same pass, or take the split's known length."""
        if total is None:
            here = (epoch, split) == (self.epoch, self.split)
            total = self.total if here else self.totals.get(split)
        self.epoch, self.split, self.step, self.total = epoch, split, step, total

    def _split_started(self, event: SplitStarted) -> None:
        self.epoch, self.split, self.step = event.epoch, event.split, 0
        self.total, self.num_epochs = event.total, event.num_epochs
        self._learn_length(event.split, event.total)
        self._begin(event.epoch, event.split)

    def _learn_length(self, split: Split, total: int | None) -> None:
        if total is not None:
            self.totals[split] = self.pace.lengths[split] = total

    def _begin(self, epoch: int, split: Split) -> None:
        self.readings[split], self.passes[split] = {}, epoch

    def _block(self, event: MetricBlock) -> None:
        self.stands_behind(event)
        self._read(event)
        self.pace.add(event)

    def _read(self, event: MetricBlock) -> None:
        if self.passes.get(event.split) != event.epoch:
            self._begin(event.epoch, event.split)
        readings = self.readings[event.split]
        for name, column in event.columns.items():
            readings.setdefault(name, LastReading()).add(column)
        self.texts.update(event.texts)

    def _finals(self, epoch: int, split: Split, finals: Mapping[str, float]) -> None:
        self.ended[split] = epoch
        kept = self.finals.setdefault(split, {})
        for name, value in finals.items():
            kept.setdefault(name, {})[epoch] = float(value)
            self.bests.pop((name, split), None)

    def _status(self, event: StatusChanged) -> None:
        self.status, self.reason = event.status, event.reason
        self._learn_length(event.split, event.total)
        self._stand(event.epoch, event.split, event.step, event.total)

    def _rewound(self, event: Rewound) -> None:
        self._forget()
        self.pace.start_over()
        for past in event.record:
            self._begin(past.epoch, past.split)
            for block in past.blocks:
                self._read(block)
                self.pace.count(block)
            if past.finals is not None:
                self._finals(past.epoch, past.split, past.finals)
                self.pace.lengths.setdefault(past.split, past.steps)
        self._stand(event.epoch, event.split, event.step)
        self.epochs_done = event.epoch - 1
