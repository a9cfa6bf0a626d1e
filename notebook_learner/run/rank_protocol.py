"""The other ranks of a training, as the loop and the replica of rank 0 see them.

With one device there are none, and nothing here is asked. With several, this process is rank 0: it decides
(how far, when to stop, what is kept), and the others do the same steps on their shares of each batch.
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
from ..metric.rank_rows import Rows
from ..state.state import State
from .control import Control

OWN = "ranks"
"""The name of the part of a state that holds what is each rank's own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the loop stands."""

    epoch: int
    split: Split
    done: int


class Hands(NamedTuple):
    """What the steps of a block are taken with."""

    fetch: Callable[[], Any]
    step: Callable[[Any, bool], Any]
    collect: Callable[[Any], None]
    control: Control


Supplier = Callable[[], Mapping[Split, Any]]
"""The data of each split, as it was given."""


class Alone(Exception):
    """Rank 0 goes through a set by itself; the text says why."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is done with each batch of a set."""

    what: str
    """For people: "evaluate test"."""
    loader: Any
    metrics: Sequence[AnyMetric] | None = None
    """What measures; None where outputs are asked for."""
    forward: Any = None
    """`fn(model, batch)` that gives an output, where somebody said how."""
    function: Any = None
    """`fn(output, batch)`, whose value is kept in place of the output."""


class Others(Protocol):
    """Ranks 1 and up on the way through a set. Each takes its part of every batch, as rank 0 does."""

    @property
    def cursor(self) -> Cursor:
        """The way of rank 0."""

    def open(self, epoch: int) -> None:
        """Rank 0 stands before the first batch."""

    def fetch(self) -> Any:
        """Rank 0's part of the next batch; EMPTY where it has none; or END."""

    def begin(self, count: int) -> None:
        """They begin with so many batches, as this rank does now."""

    def gather(self, count: int) -> Sequence[Any]:
        """What each of them found in the batches since the last time, of which there were so many."""

    def fault(self, error: BaseException) -> BaseException:
        """This rank goes no further: no other one waits for it. Gives what it all began with."""


class Ranks(Protocol):
    """Ranks 1 and up. Every verb leaves them where rank 0 stands, or says who failed."""

    def enter(self) -> None:
        """A run begins: they are there, and have the state that rank 0 has."""

    def leave(self) -> None:
        """The run is over."""

    def walk(self, changes: Any) -> None:
        """Until they leave, they take steps with these changes, as this rank does."""

    def open(self, place: Place, cursor: Cursor) -> None:
        """The loop begins with a split, or goes on in it."""

    def hands(self, step: Any, cursor: Cursor, metrics: MetricGroup) -> Hands:
        """What this rank takes its own steps with."""

    def steps(self, place: Place, count: int) -> None:
        """They begin with so many steps, as this rank does now."""

    def gather(self, steps: int) -> Sequence[Rows]:
        """What they measured in the steps since the last time."""

    def close(self, finals: Mapping[str, float]) -> None:
        """The split is over, with these values."""

    def closed(self) -> None:
        """They have closed it, too."""

    def fault(self, error: BaseException) -> BaseException:
        """This rank cannot go on: no other one waits for it any more. Gives what it all began with."""

    def capture(self, parts: dict[str, Any]) -> None:
        """Add to a captured state what they alone know."""

    @property
    def in_parts(self) -> bool:
        """Whether each of them has but its part of the weights while they train."""

    def whole(self) -> None:
        """Have all weights here, until the next step.

        Raises:
            StateError: not all parts are left.
        """

    def look(self) -> None:
        """The same for somebody who looks at them in a run, unless the others are in steps."""

    def lay_down(self) -> None:
        """A whole state is about to be put here: whatever rank 0 held is of no use."""

    def put_back(self, state: State) -> None:
        """Rank 0 stands at this state now."""

    @property
    def world(self) -> int:
        """How many there are, this one included."""

    def tour(self, task: Task, cursors: Callable[..., Cursor]) -> AbstractContextManager[Others]:
        """Inside, they go along through a set; afterwards they stand as they did, to the bit.

        Raises:
            Alone: they cannot.
        """

    def inspect(self, rank: int, batch: Any, tokenizer: Any) -> Any:
        """What a step looks like on one of them."""

    def restart(self) -> None:
        """Start all of them anew, where rank 0 stands."""

    def table(self) -> Any:
        """How each of them is, asked where they do nothing else."""

    def seen(self) -> Any:
        """How each of them is, from outside."""

    def shut(self) -> None:
        """Nobody needs them any more."""
