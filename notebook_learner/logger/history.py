"""Everything measured so far, in memory. Policies read it to decide, and users read it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import names_descriptors
from ..event.kept_sheets import KeptSheets
from ..event.record import common_steps, joinable, joined, same_pass, text_runs
from ..event.values import (
    Column,
    Evaluated,
    Event,
    Floats,
    Marked,
    MetricAdded,
    MetricBlock,
    MetricInfo,
    Record,
    Rewound,
    RunOpened,
    Sheet,
    Split,
    SplitEnded,
    SplitRecord,
    SplitStarted,
    StatusChanged,
)
from ..store.layout import TEST

SPLITS: tuple[Split, ...] = ("train", "valid")
STEPS = np.dtype([("epoch", np.int64), ("step", np.int64)])
_MARKED = ("paused", "failed", "stopped")


class Best(NamedTuple):
    """The best epoch of a metric."""

    epoch: int
    value: float


class Mark(NamedTuple):
    """An event at a position: paused, failed, stopped, rewound, breakpoint, edited or forked."""

    kind: str
    epoch: int
    split: Split
    step: int
    text: str


class History:
    """What was measured, step by step and epoch by epoch.

    >>> from notebook_learner.event import Column, MetricBlock, SplitEnded, SplitStarted
    >>> history = History()
    >>> history.handle(SplitStarted(1, "train", 2, 1))
    >>> loss = Column(np.array([0.75, 0.25]), np.array([32.0, 32.0]))
    >>> history.handle(MetricBlock(1, "train", 1, 2, 2, {"Loss": loss}, {}, 0.1))
    >>> history.handle(SplitEnded(1, "train", 2, {"Loss": 0.5}))
    >>> history["train", "Loss"]
    array([0.75, 0.25])
    >>> history.best("Loss", "train", mode="min")
    Best(epoch=1, value=0.5)
    >>> history
    History(1 epoch, 2 training steps; train: Loss)

    You may change the returned arrays. Reading is safe while another thread trains.
    """

    def __init__(self) -> None:
        self._infos: dict[tuple[str, str], MetricInfo] = {}
        self._closed: list[SplitRecord] = []
        self._open: OpenPass | None = None
        self._latest = 0
        """The highest epoch that has a pass."""
        self._restored: Record | None = None
        self._marks: list[Mark] = []
        self._evaluated: dict[str, Evaluated] = {}
        self._sheets = KeptSheets()
        self._lock = threading.RLock()

    # --------------------------------------------------------------------------------- listening

    def handle(self, event: Event, /) -> None:
        """Take one event."""
        with self._lock:
            if isinstance(event, MetricBlock):
                self._add(event)
            elif isinstance(event, SplitStarted):
                self._start(event.epoch, event.split)
            elif isinstance(event, SplitEnded):
                self._end(event)
            elif isinstance(event, StatusChanged):
                if event.status in _MARKED and not self._marked_by_breakpoint(event):
                    self._marks.append(Mark(event.status, event.epoch, event.split, event.step, event.reason))
            elif isinstance(event, Rewound):
                self._rewind(event)
            elif isinstance(event, RunOpened):
                self._infos = {(info.split, info.name): info for info in event.metrics}
            elif isinstance(event, MetricAdded):
                self._infos[event.info.split, event.info.name] = event.info
            elif isinstance(event, Evaluated):
                self._evaluated[event.name] = event
            elif isinstance(event, Sheet):
                self._sheets.add(event)
            elif isinstance(event, Marked):
                self._marks.append(Mark(event.kind, event.epoch, event.split, event.step, event.text))

    def _marked_by_breakpoint(self, event: StatusChanged) -> bool:
        """Whether this pause belongs to the breakpoint that was just marked."""
        last = self._marks[-1] if self._marks else None
        return (
            last is not None
            and last.kind == "breakpoint"
            and last.text == event.reason
            and (last.epoch, last.split, last.step) == (event.epoch, event.split, event.step)
        )

    def snapshot(self) -> Record:
        """Everything measured so far, immutable: a tuple of references, for a run of any length."""
        with self._lock:
            return (*self._closed, *(() if self._open is None else (self._open.record(),)))

    def restore(self, record: Record) -> tuple[int, int]:
        """Replace what was measured with `record`.

        Returns how much of it was already there, for the `Rewound` event: the number of leading passes that
        are equal, and of leading steps in the pass after them.
        """
        with self._lock:
            kept = _kept(self.snapshot(), record)
            self._closed, self._open = [*record], None
            self._latest = max((past.epoch for past in record), default=0)
            if record and record[-1].finals is None:
                last = record[-1]
                del self._closed[-1]
                self._open = OpenPass(last.epoch, last.split, last.blocks)
            self._restored = record
            return kept

    def _start(self, epoch: int, split: Split) -> OpenPass:
        """Open a pass. It replaces an earlier pass of the same epoch and split."""
        self._close(None)
        if self._latest >= epoch:  # otherwise no earlier pass can match
            self._closed = [past for past in self._closed if (past.epoch, past.split) != (epoch, split)]
        self._open = OpenPass(epoch, split)
        self._latest = max(self._latest, epoch)
        self._restored = None
        return self._open

    def _add(self, block: MetricBlock) -> None:
        current = self._open
        if current is None or (current.epoch, current.split) != (block.epoch, block.split):
            current = self._start(block.epoch, block.split)
        if block.first <= current.last:
            raise ValueError(
                f"steps {block.first} to {block.last} of epoch {block.epoch}, {block.split} came after step "
                f"{current.last} was measured; announce a way back with Rewound"
            )
        current.add(block)
        self._restored = None

    def _end(self, event: SplitEnded) -> None:
        current = self._open
        if current is None or (current.epoch, current.split) != (event.epoch, event.split):
            self._start(event.epoch, event.split)
        self._close(event)

    def _close(self, event: SplitEnded | None) -> None:
        if self._open is not None:
            finals = None if event is None else dict(event.finals)
            self._closed.append(self._open.ended(finals))
            self._open = None
            self._restored = None

    def _rewind(self, event: Rewound) -> None:
        if self._restored is not event.record:  # a learner restored it already; a plain sink did not
            self.restore(event.record)
        self._sheets.go_back(event)
        self._marks.append(Mark("rewound", event.epoch, event.split, event.step, event.reason))

    # ----------------------------------------------------------------------------------- steps

    def values(self, name: str, split: Split | str, epoch: int | None = None) -> Floats:
        """A metric's value at every step; NaN at steps where it had none."""
        return self._column(name, split, epoch, weights=False)

    def weights(self, name: str, split: Split | str, epoch: int | None = None) -> Floats:
        """The weight of each value (samples, tokens, ...); 1 for unweighted readings."""
        return self._column(name, split, epoch, weights=True)

    def texts(self, name: str, split: Split, epoch: int | None = None) -> list[str]:
        """A text metric's line at every step; empty at steps without one. Steps that were read together,
        within a tenth of a second, share a line."""
        info = self._infos.get((split, name))
        blocks = list(self._blocks(split, epoch))
        if (info is None or info.kind != "text") and not any(name in block.texts for block in blocks):
            told = {
                known for (where, known), info in self._infos.items() if (where, info.kind) == (split, "text")
            }
            there = ", ".join(sorted(told)) or "none"
            raise KeyError(f"no text metric {name!r} in {split}; there are: {there}")
        runs = [text_runs(block, name) if name in block.texts else ((block.count, ""),) for block in blocks]
        return [text for block in runs for count, text in block for _ in range(count)]

    def steps(self, split: Split | str, epoch: int | None = None) -> NDArray[np.void]:
        """The epoch and step of each value: a structured array with the fields `epoch` and `step`."""
        blocks = list(self._blocks(split, epoch))
        positions = np.empty(sum(block.count for block in blocks), STEPS)
        start = 0
        for block in blocks:
            rows = positions[start : start + block.count]
            rows["epoch"] = block.epoch
            rows["step"] = np.arange(block.first, block.last + 1)
            start += block.count
        return positions

    def iterations(self, split: Split | str, epoch: int | None = None) -> NDArray[np.int64]:
        """How many training steps the run had taken at each step."""
        return _concatenated(
            [
                np.arange(block.iteration - block.count + 1, block.iteration + 1)
                if block.split == "train"
                else np.full(block.count, block.iteration)
                for block in self._blocks(split, epoch)
            ],
            np.int64,
        )

    def __getitem__(self, key: tuple[Split | str, str] | tuple[Split | str, str, int]) -> Floats:
        """A metric's values: `history["train", "Loss"]`, or of one epoch: `history["train", "Loss", 3]`."""
        if not isinstance(key, tuple) or len(key) not in (2, 3):
            raise KeyError(
                f'history[{key!r}]: ask for history["train", "Loss"] or history["train", "Loss", 3]'
            )
        return self.values(key[1], key[0], key[2] if len(key) == 3 else None)

    # ---------------------------------------------------------------------------------- epochs

    def last_values(self) -> tuple[Split, dict[str, float]] | None:
        """The split and the metric values of the last step that was measured."""
        record = self.snapshot()
        if not record or not record[-1].blocks:
            return None
        block = record[-1].blocks[-1]
        values = {
            name: float(column.values[-1])
            for name, column in block.columns.items()
            if column.weights is None or column.weights[-1] != 0
        }
        return block.split, values

    def epoch_numbers(self, split: Split | str) -> NDArray[np.int64]:
        """The epochs that have ended: one number for each value of `epochs`."""
        return np.array([past.epoch for past in self._ended(split)], dtype=np.int64)

    def epochs(self, name: str, split: Split | str) -> Floats:
        """A metric's value of every epoch that has ended; NaN if the epoch had none."""
        self._require(name, split)
        finals = [past.finals or {} for past in self._ended(split)]
        return np.array([values.get(name, np.nan) for values in finals], dtype=np.float64)

    def final(self, name: str, split: Split | str, epoch: int | None = None) -> float:
        """A metric's value of one epoch; without a number, of the last epoch that has ended."""
        self._require(name, split)
        for past in reversed(self._ended(split)):
            if epoch in (None, past.epoch) and past.finals is not None and name in past.finals:
                return float(past.finals[name])
        ended = _listed(self.epoch_numbers(split))
        if epoch is None:
            raise KeyError(f"no epoch has a final value of {name!r} in {split} yet; ended epochs: {ended}")
        raise KeyError(f"epoch {epoch} has no final value of {name!r} in {split}; ended epochs: {ended}")

    def best(self, name: str, split: Split | str, mode: Literal["min", "max"] | None = None) -> Best | None:
        """The best epoch of a metric; the first of equal ones. NaN never wins; None before the first value.

        The metric says whether higher or lower is better; `mode` overrides it.
        """
        with self._lock:
            values, numbers = self.epochs(name, split), self.epoch_numbers(split)
        higher = self._higher_is_better(name, split, mode)
        known = np.flatnonzero(~np.isnan(values))
        if not len(known):
            return None
        at = known[(np.argmax if higher else np.argmin)(values[known])]
        return Best(int(numbers[at]), float(values[at]))

    def running(self, name: str, split: Split | str) -> float | None:
        """A metric's weighted mean over the running pass; None before its first value."""
        with self._lock:
            self._require(name, split)
            if self._open is None or self._open.split != split:
                return None
            return self._open.running(name)

    # ------------------------------------------------------------------------------------ all

    @property
    def evaluated(self) -> dict[str, Evaluated]:
        """The evaluated sets, by name. Use "test/" and the name as a split:
        `history["test/clean", "Loss"]`."""
        with self._lock:
            return dict(self._evaluated)

    @property
    def sheets(self) -> tuple[Sheet, ...]:
        """What was made to be looked at: pictures and texts of metrics, and chosen samples, the older ones
        first."""
        with self._lock:
            return self._sheets.all()

    @property
    def infos(self) -> tuple[MetricInfo, ...]:
        """The metrics' units, directions and kinds, from the opening of the run."""
        return tuple(self._infos.values())

    def metrics(self, split: Split | str) -> tuple[str, ...]:
        """The names of the numeric metrics of a split."""
        passes = self._passes(split)
        names = {
            info.name: None for info in self._infos.values() if info.split == split and info.kind == "numeric"
        }
        for past in passes:
            for block in past.blocks:
                names.update(dict.fromkeys(block.columns))
            names.update(dict.fromkeys(past.finals or ()))
        return tuple(names)

    @property
    def marks(self) -> list[Mark]:
        """Pauses, failures, stops and rewinds, in the order they happened."""
        with self._lock:
            return list(self._marks)

    @names_descriptors
    def to_pandas(self, form: Literal["wide", "long"] = "wide") -> Any:
        """All steps as a pandas DataFrame: one column per metric ("wide"), or one row per value ("long").

        The steps of an evaluated set have "test/" and its name as `split`; their epoch and iteration are
        those of the weights.
        """
        from .data_frame import to_pandas

        return to_pandas(self, form)

    def __len__(self) -> int:
        """The number of measured training steps."""
        return sum(block.count for block in self._blocks("train", None))

    def __bool__(self) -> bool:
        return True  # an empty history is true: `if learner.history` asks whether one exists

    def __repr__(self) -> str:
        record = self.snapshot()
        epochs = len({past.epoch for past in record})
        names = [f"{split}: {', '.join(self.metrics(split))}" for split in SPLITS if self.metrics(split)]
        steps = f"{_plural(epochs, 'epoch')}, {_plural(len(self), 'training step')}"
        return f"History({'; '.join([steps, *names])})"

    # -------------------------------------------------------------------------------- finding

    def _passes(self, split: Split | str) -> list[SplitRecord]:
        """The passes over a split, or the one pass over an evaluated set."""
        if split in SPLITS:
            return [past for past in self.snapshot() if past.split == split]
        known = self.evaluated
        place, _, name = split.partition("/")
        if place != TEST or name not in known:
            there = ", ".join([*SPLITS, *(f"{TEST}/{each}" for each in known)])
            raise KeyError(f"no split {split!r}; there are: {there}")
        return [known[name].record]

    def _blocks(self, split: Split | str, epoch: int | None) -> Iterator[MetricBlock]:
        passes = self._passes(split)
        if epoch is not None:
            known = [past.epoch for past in passes]
            passes = [past for past in passes if past.epoch == epoch]
            if not passes:
                raise KeyError(f"no epoch {epoch} in {split}; there are: {_listed(known)}")
        return (block for past in passes for block in past.blocks)

    def _column(self, name: str, split: Split | str, epoch: int | None, *, weights: bool) -> Floats:
        self._require(name, split)
        parts: list[Floats] = []
        for block in self._blocks(split, epoch):
            column = block.columns.get(name)
            if column is None:
                parts.append(np.full(block.count, 0.0 if weights else np.nan))
            elif weights:
                parts.append(np.ones(block.count) if column.weights is None else column.weights)
            else:
                parts.append(column.values)
        return _concatenated(parts, np.float64)

    def _ended(self, split: Split | str) -> list[SplitRecord]:
        return [past for past in self._passes(split) if past.finals is not None]

    def _require(self, name: str, split: Split | str) -> None:
        info = self._infos.get((split, name))
        if (info is None or info.kind == "text") and name not in self.metrics(split):
            there = ", ".join(sorted(self.metrics(split))) or "none yet"
            raise KeyError(f"no metric {name!r} in {split}; there are: {there}")

    def _higher_is_better(self, name: str, split: Split | str, mode: Literal["min", "max"] | None) -> bool:
        if mode is not None:
            if mode not in ("min", "max"):
                raise ValueError(f"mode is {mode!r}; it must be 'min' or 'max'")
            return mode == "max"
        told = [self._infos.get((where, name)) for where in (split, *SPLITS)]
        for info in told:
            if info is not None and info.higher_is_better is not None:
                return info.higher_is_better
        raise ValueError(
            f"the metric {name!r} does not say which way is better, so it has no best; "
            "pass mode='min' or mode='max', or set higher_is_better on the metric"
        )


def _kept(ours: Record, theirs: Record) -> tuple[int, int]:
    splits = 0
    while splits < min(len(ours), len(theirs)) and same_pass(ours[splits], theirs[splits]):
        splits += 1
    if splits == min(len(ours), len(theirs)):
        return splits, 0
    return splits, common_steps(ours[splits], theirs[splits])


def _concatenated(parts: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _listed(epochs: Any) -> str:
    numbers = [int(epoch) for epoch in epochs]
    if not numbers:
        return "none yet"
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


class InMemoryMetricLogger:
    """Keeps every event, and a `History` of its own.

    >>> from notebook_learner.event import Notice, SplitEnded, SplitStarted
    >>> logger = InMemoryMetricLogger()
    >>> for event in (SplitStarted(1, "valid", 0, 1), SplitEnded(1, "valid", 0, {"Loss": 0.5})):
    ...     logger.handle(event)
    >>> logger.history.final("Loss", "valid"), len(logger.events)
    (0.5, 2)
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.history = History()

    def handle(self, event: Event, /) -> None:
        """Take one event."""
        self.events.append(event)
        self.history.handle(event)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it starts empty: there it gets everything that was measured, like any logger."""
        return InMemoryMetricLogger, ()

    def __repr__(self) -> str:
        return f"InMemoryMetricLogger({len(self.events)} events, {self.history!r})"


LOOSE = 64


class OpenPass:
    """Takes blocks, and joins them as their number grows.

    Every 64 blocks become one, and a block joins the one before it if that is at most twice its
    size. So a pass of n steps is O(log n) blocks for any sequence of blocks, each row is copied O(log n)
    times, and a snapshot is a short tuple of references.
    """

    def __init__(self, epoch: int, split: Split, blocks: tuple[MetricBlock, ...] = ()) -> None:
        self.epoch = epoch
        self.split: Split = split
        self.blocks = list(blocks)
        self._loose = 0
        self._sums: dict[str, _Sum] = {}

    @property
    def last(self) -> int:
        """The last step in it."""
        return self.blocks[-1].last if self.blocks else 0

    def add(self, block: MetricBlock) -> None:
        """Add the next steps."""
        self.blocks.append(block)
        self._loose += 1
        if self._loose >= LOOSE:
            self._tidy()

    def record(self, finals: Mapping[str, float] | None = None) -> SplitRecord:
        """What was measured so far, as an immutable value."""
        return SplitRecord(self.epoch, self.split, tuple(self.blocks), finals)

    def ended(self, finals: Mapping[str, float] | None) -> SplitRecord:
        """The whole pass, in one block if its metrics stayed the same."""
        return SplitRecord(self.epoch, self.split, tuple(joined(self.blocks)), finals)

    def running(self, name: str) -> float | None:
        """The weighted mean of a metric so far; None before its first value."""
        total = self._sums.setdefault(name, _Sum())
        for block in self.blocks:
            if block.last > total.upto and name in block.columns:
                total.add(block.columns[name], max(0, total.upto + 1 - block.first))
        total.upto = self.last
        return total.mean()

    def _tidy(self) -> None:
        self.blocks[-self._loose :] = joined(self.blocks[-self._loose :])
        self._loose = 0
        while len(self.blocks) > 1 and self._belong_together(*self.blocks[-2:]):
            self.blocks[-2:] = joined(self.blocks[-2:])

    @staticmethod
    def _belong_together(block: MetricBlock, following: MetricBlock) -> bool:
        return block.count <= 2 * following.count and joinable(block, following)


class _Sum:
    """A running weighted mean that reads each row once."""

    def __init__(self) -> None:
        self.upto = 0
        self.total = 0.0
        self.weight = 0.0

    def add(self, column: Column, skip: int) -> None:
        values = column.values[skip:]
        weights = ~np.isnan(values) * 1.0 if column.weights is None else column.weights[skip:]
        counts = weights > 0
        self.total += float(values[counts] @ weights[counts])
        self.weight += float(weights[counts].sum())

    def mean(self) -> float | None:
        return self.total / self.weight if self.weight else None
