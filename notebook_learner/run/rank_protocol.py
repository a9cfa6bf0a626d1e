"""The interface to the other ranks of a training, for the loop and the replica of rank 0.

With one device there are no other ranks, and nothing here is used. With several, this process is rank 0. It
decides how far to train, when to stop and what to keep. The others do the same steps on their part of each
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ..data.cursor import Cursor
from ..event import Split
from ..metric import MetricGroup
from ..metric.base import AnyMetric
from ..metric.rows import Rows
from ..state.state import State
from .control import Control

OWN = "ranks"
"""The name of the part of a state that holds each rank's own values."""


@dataclass(frozen=True, slots=True)
class Place:
    """The position of the loop."""

    epoch: int
    split: Split
    done: int


class Hands(NamedTuple):
    """What a block's steps use."""

    fetch: Callable[[], Any]
    step: Callable[[Any, bool], Any]
    collect: Callable[[Any], None]
    control: Control


Supplier = Callable[[], Mapping[Split, Any]]
"""The data of each split, as the user gave it."""


class Alone(Exception):
    """Rank 0 goes through a set without the others; the text says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """The work for each batch of a set."""

    what: str
    """The name that users see: "evaluate test"."""
    loader: Any
    metrics: Sequence[AnyMetric] | None = None
    """The metrics; None if the task returns outputs."""
    forward: Any = None
    """The user's step `fn(model, batch)` that gives an output, or None."""
    function: Any = None
    """The user's `fn(output, batch)`, whose value is kept instead of the output."""


class Others(Protocol):
    """Ranks 1 and up on their way through a set. Each takes its part of every batch, like rank 0."""

    @property
    def cursor(self) -> Cursor:
        """The cursor of rank 0."""

    def open(self, epoch: int) -> None:
        """Rank 0 stands before the first batch."""

    def fetch(self) -> Any:
        """Rank 0's part of the next batch; Idle if it has no part; or END."""

    def begin(self, count: int) -> None:
        """Start this many batches on the other ranks, as this rank does now."""

    def gather(self, count: int) -> Sequence[Any]:
        """The results of each rank for the last `count` batches."""

    def fault(self, error: BaseException) -> BaseException:
        """This rank stops, and no other rank waits for it. Return the error that started it all."""


class Ranks(Protocol):
    """Ranks 1 and up. After every method they stand where rank 0 does, or it raises which one failed."""

    def enter(self) -> None:
        """A run begins: the ranks run, and have the state of rank 0."""

    def leave(self) -> None:
        """The run has ended."""

    def reshaped(self, order: list[int | None]) -> None:
        """Layers, groups or functions are other ones: have the other ranks built anew from this one. `order`
        has the former place of each parameter."""

    def follow(self) -> None:
        """Rank 0 was changed by hand at this boundary: give the ranks its state."""

    def walk(self, changes: Any) -> None:
        """Let the ranks take steps with these changes, as this rank does, until `leave`."""

    def open(self, place: Place, cursor: Cursor) -> None:
        """The loop begins a split, or goes on in it."""

    def hands(self, step: Any, cursor: Cursor, metrics: MetricGroup) -> Hands:
        """What this rank uses for its own steps."""

    def steps(self, place: Place, count: int) -> None:
        """Start this many steps on the other ranks, as this rank does now."""

    def gather(self, steps: int) -> Sequence[Rows]:
        """What the other ranks measured since the last call."""

    def close(self, finals: Mapping[str, float]) -> None:
        """The split has ended, with these values."""

    def closed(self) -> None:
        """The other ranks have closed the split, too."""

    def fault(self, error: BaseException) -> BaseException:
        """This rank cannot go on, and no other rank waits for it. Return the error that started it all."""

    def capture(self, parts: dict[str, Any]) -> None:
        """Add to a captured state the parts that only the other ranks know."""

    @property
    def in_parts(self) -> bool:
        """Whether each rank holds only its part of the weights while it trains."""

    def whole(self) -> None:
        """Bring all weights to this rank, until the next step.

        Raises:
            StateError: some parts are lost.
        """

    def look(self) -> None:
        """Like `whole`, for a user who looks at the weights during a run, unless the others run steps."""

    def lay_down(self) -> None:
        """A whole state will be put here: rank 0's present values are not needed any more."""

    def put_back(self, state: State) -> None:
        """Rank 0 now stands at this state."""

    @property
    def world(self) -> int:
        """The number of ranks, this one included."""

    def tour(self, task: Task, cursors: Callable[..., Cursor]) -> AbstractContextManager[Others]:
        """Inside the block the ranks go through a set together; afterwards they are as before, to the bit.

        Raises:
            Alone: the other ranks cannot take part.
        """

    def inspect(self, rank: int, batch: Any, tokenizer: Any) -> Any:
        """What a step looks like on one of the ranks."""

    def release(self) -> None:
        """Let the other ranks go; they begin again at the position of rank 0, when it moves."""

    def lost(self) -> bool:
        """Whether the other ranks ended with what each of them had of its own, so that nobody knows it."""

    def begin_anew(self) -> None:
        """Nobody will know it: have each rank begin with values that follow from those of rank 0."""

    def table(self) -> Any:
        """The status of each rank; asked while the ranks do nothing else."""

    def seen(self) -> Any:
        """The status of each rank, as seen from outside."""

    def shut(self) -> None:
        """End the ranks: they are not needed any more."""
