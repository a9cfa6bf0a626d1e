"""What happened, as frozen values: the only thing that leaves the loop.

Events hold plain numbers, strings and NumPy arrays, never tensors or the learner: a sink can keep
them, send them to another thread or write them down without holding device memory. Metric values
travel in blocks (about ten a second), one row a step, because an event per step would cost more than
the step of a small model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Split = Literal["train", "valid"]
Status = Literal["ready", "running", "paused", "failed", "stopped", "finished"]
Level = Literal["info", "warning", "error"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One registered metric of one split, told once when the run opens."""

    name: str
    split: Split
    unit: str = ""
    higher_is_better: bool | None = None
    kind: Literal["numeric", "text"] = "numeric"
    plotted: bool = True
    """Registered through `*_numeric` (or `metrics`): shown as a curve and in the summary."""


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one metric over the steps of a block.

    `weights` says how many samples (tokens, pixels, ...) stand behind each value; None marks an
    unweighted reading such as CPU use. A row of weight 0 means "no value at this step".
    """

    values: Floats
    weights: Floats | None = None


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A learner was built."""

    directory: str
    model: str
    parameters: int
    num_epochs: int
    metrics: tuple[MetricInfo, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MetricAdded:
    """A step logged a value under a new name: a metric that nobody registered."""

    info: MetricInfo


@dataclass(frozen=True, slots=True)
class SplitStarted:
    """A pass over one loader begins. `total` is None where the loader does not know its length."""

    epoch: int
    split: Split
    total: int | None
    num_epochs: int


@dataclass(frozen=True, slots=True)
class MetricBlock:
    """Consecutive steps of one split with all their metric values.

    Row i belongs to step `first + i` (counted from 1) of the split in this epoch. `texts` holds the
    latest text of each text metric; it stands for every row.
    """

    epoch: int
    split: Split
    first: int
    count: int
    iteration: int
    """The run's training steps up to and including the last row."""
    columns: Mapping[str, Column]
    texts: Mapping[str, str]
    seconds: float
    """Wall time these steps took: the rate, for whoever shows one. Never part of the state."""
    text_runs: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict)
    """Only where blocks with different texts were joined: (rows, text) runs that cover every row."""

    @property
    def last(self) -> int:
        """The step of the last row."""
        return self.first + self.count - 1


@dataclass(frozen=True, slots=True)
class SplitEnded:
    """A pass is over; `finals` are the epoch's values, from accumulated counts."""

    epoch: int
    split: Split
    steps: int
    finals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """Training and validation of an epoch are over."""

    epoch: int
    num_epochs: int


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The learner started, paused, failed, stopped or finished, and where it stands."""

    status: Status
    epoch: int
    split: Split
    step: int
    total: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Marked:
    """Something happened at a place that people look for later: a breakpoint hit, the step was edited, a
    sibling run was forked off."""

    kind: Literal["breakpoint", "edited", "forked"]
    epoch: int
    split: Split
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is on the disk. It is told at the next boundary, so training may be further on."""

    label: str
    """What it can be restored by: "3", "3-117"."""
    epoch: int
    split: Split
    step: int
    size: int
    """Bytes, all files together."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something a person should know, in one line."""

    text: str
    level: Level = "info"
    answers: bool = False
    """It answers what was just asked for: a display shows it there, and not in a log alone."""


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """One pass as it happened: its blocks in order, and its final values once it ended."""

    epoch: int
    split: Split
    blocks: tuple[MetricBlock, ...]
    finals: Mapping[str, float] | None = None

    @property
    def steps(self) -> int:
        """How many steps the blocks cover."""
        return sum(block.count for block in self.blocks)


Record = tuple[SplitRecord, ...]
"""Everything measured so far, pass by pass. Immutable, so a captured state can hold one for free."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """The run stands elsewhere: what was measured is now exactly `record`.

    Sinks that keep values can cut instead of starting over: the first `kept_splits` passes are the
    ones they already have, and so are the first `kept_steps` steps of the pass after them.
    """

    epoch: int
    split: Split
    step: int
    record: Record
    kept_splits: int
    kept_steps: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SetProgress:
    """Other data than the training's is gone through, to evaluate or to predict, or steps are taken again on
    the way back to an earlier place: how far it came.

    `over` comes once, also where it failed or was broken off.
    """

    what: str
    step: int
    total: int | None
    over: bool = False
    unit: Literal["batch", "step"] = "batch"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A set of its own was measured with the weights of this place. It replaces what was measured of the
    set of that name before; going back in the training does not take it back."""

    name: str
    epoch: int
    split: Split
    step: int
    record: SplitRecord
    """Its blocks, in order, and the values of the whole set. They are of the split "valid", which the set
    was measured like, and `iteration` is that of the place."""
    metrics: tuple[MetricInfo, ...] = ()


Event = (
    RunOpened
    | MetricAdded
    | SplitStarted
    | MetricBlock
    | SplitEnded
    | EpochEnded
    | StatusChanged
    | Marked
    | CheckpointSaved
    | Notice
    | Rewound
    | SetProgress
    | Evaluated
)
