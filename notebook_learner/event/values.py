"""Events: frozen values that say what happened. Nothing else leaves the loop.

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

from ..errors import ConfigurationError

Split = Literal["train", "valid"]
Status = Literal["ready", "running", "paused", "failed", "stopped", "finished"]
Level = Literal["info", "warning", "error"]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One registered metric of one split; sent once, when the run opens."""

    name: str
    split: Split
    unit: str = ""
    higher_is_better: bool | None = None
    kind: Literal["numeric", "text"] = "numeric"
    plotted: bool = True
    """True if it was registered through `metrics` or `*_numeric`. A number then has a curve."""
    of_epochs: bool = True
    """False for a reading, such as a learning rate: an epoch has no value of it, so tables leave it out."""


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
    """A step logged a value under a new name, for which no metric was registered."""

    info: MetricInfo


@dataclass(frozen=True, slots=True)
class SplitStarted:
    """A pass over one loader begins. `total` is None if the loader does not know its length."""

    epoch: int
    split: Split
    total: int | None
    num_epochs: int


@dataclass(frozen=True, slots=True)
class MetricBlock:
    """Consecutive steps of one split with all their metric values.

    Row i belongs to step `first + i` (counted from 1) of the split in this epoch. `texts` holds the
    latest text of each text metric; it is valid for every row.
    """

    epoch: int
    split: Split
    first: int
    count: int
    iteration: int
    """The number of training steps the run has taken, up to and including the last row."""
    columns: Mapping[str, Column]
    texts: Mapping[str, str]
    seconds: float
    """Wall time of these steps, from which displays compute the rate. Never part of the state."""
    text_runs: Mapping[str, Sequence[tuple[int, str]]] = field(default_factory=dict)
    """Set only if blocks with different texts were joined: (rows, text) runs that cover every row."""

    @property
    def last(self) -> int:
        """The step of the last row."""
        return self.first + self.count - 1


@dataclass(frozen=True, slots=True)
class SplitEnded:
    """A pass has ended; `finals` are the epoch's values, from accumulated counts."""

    epoch: int
    split: Split
    steps: int
    finals: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """Training and validation of an epoch have ended."""

    epoch: int
    num_epochs: int


@dataclass(frozen=True, slots=True)
class StatusChanged:
    """The learner started, paused, failed, stopped or finished, at this position."""

    status: Status
    epoch: int
    split: Split
    step: int
    total: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Marked:
    """Something happened at a position that users look for later: a breakpoint hit, the step was edited, or
    another run was forked."""

    kind: Literal["breakpoint", "edited", "forked"]
    epoch: int
    split: Split
    step: int
    text: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint is on the disk. This is sent at the next boundary, so training may be further on."""

    label: str
    """The label that `restore` takes: "3", "3-117"."""
    epoch: int
    split: Split
    step: int
    size: int
    """Total size of its files in bytes."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to the user, in one line."""

    text: str
    level: Level = "info"
    answers: bool = False
    """True if it answers a request of the user: a display then shows it there, not only in a log."""


@dataclass(frozen=True, slots=True)
class SplitRecord:
    """One recorded pass: its blocks in order, and its final values after it ended."""

    epoch: int
    split: Split
    blocks: tuple[MetricBlock, ...]
    finals: Mapping[str, float] | None = None

    @property
    def steps(self) -> int:
        """The number of steps in the blocks."""
        return sum(block.count for block in self.blocks)


Record = tuple[SplitRecord, ...]
"""Everything measured so far, pass by pass. Immutable, so a captured state holds it without a copy."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """The run went to another position: what was measured is now exactly `record`.

    Sinks that keep values can cut instead of starting over. They already have the first `kept_splits`
    passes, and the first `kept_steps` steps of the pass after them.
    """

    epoch: int
    split: Split
    step: int
    record: Record
    kept_splits: int
    kept_steps: int
    reason: str = ""
    former: Record = field(default=(), compare=False, repr=False)
    """What was measured before, on the way that the run leaves; empty if nothing is left."""


@dataclass(frozen=True, slots=True)
class SetProgress:
    """Progress of a pass outside of training: an evaluation, a prediction, or a replay to an earlier
    position.

    `over` is sent once, also if the pass failed or was stopped early.
    """

    what: str
    step: int
    total: int | None
    over: bool = False
    unit: Literal["batch", "step"] = "batch"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A data set was evaluated with the weights of this position. This replaces an earlier evaluation of a
    set of the same name. Going back in the training does not remove it."""

    name: str
    epoch: int
    split: Split
    step: int
    record: SplitRecord
    """Its blocks, in order, and the values of the whole set. Their split is "valid", because the set was
    measured like validation data, and `iteration` is the one of the position."""
    metrics: tuple[MetricInfo, ...] = ()


Cell = str | bytes
"""Text, or a picture as a PNG file."""


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One sample, and what the model says of it."""

    given: Cell
    target: Cell
    prediction: Cell
    loss: float | None = None
    right: bool | None = None
    """Whether the prediction is the target; None if that is no question of yes or no."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """Counts of classes: a row for each true class, a column for each answer."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sheet:
    """Something to look at that is no number: it replaces the earlier one of this name and split.

    It is of the position at which it was made. Going back behind that takes it back.
    """

    name: str
    of: Split | None
    """The split whose data it is about; None for chosen samples."""
    epoch: int
    split: Split
    step: int
    content: Matrix | tuple[SampleRow, ...] | Cell


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
    | Sheet
)


Finals = Mapping[tuple[Split, str], float]
Source = tuple[Split, str]
"""The split and the metric's name."""


def epoch_value(rule: str, source: Source, finals: Finals) -> float:
    """The value that a rule asks for; registered it is, so a missing one was never measured."""
    if source in finals:
        return finals[source]
    raise ConfigurationError([why_never_measured(rule, source)], "the epoch cannot end")


def why_never_measured(rule: str, source: Source) -> str:
    """The message if a rule uses a split that has no loader."""
    split, metric = source
    return (
        f"{rule} goes by the {split} {metric}, but there is no {split} loader; give one, "
        "fit(train_loader, valid_loader), or let it go by a metric of the training split"
    )
