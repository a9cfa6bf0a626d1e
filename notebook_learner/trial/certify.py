"""Replays a run, or some of it, from state to state, and compares everything to the bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..artifacts.certificate import Certificate
from ..checkpoint.info import CheckpointInfo
from ..errors import Paused, StateError
from ..event import MetricBlock
from ..event.position import Position
from ..event.values import Event
from ..run.bounds import FAR, At
from ..run.compared import Compared, Difference
from ..run.replica import Replica
from ..state.checkpoint_files import place_of
from ..state.state import State
from .excursion import excursion
from .footprint import Footprint, first_difference, state_print


@dataclass(frozen=True, slots=True, repr=False)
class Certification:
    """What `learner.verify(replay=True)` found, and where its certificate lies."""

    certificate: Certificate
    stretches: int
    path: str
    differs: Difference | None = None

    @property
    def exact(self) -> bool:
        """Whether every step that was taken again gave the same bits."""
        return self.certificate.exact

    def __str__(self) -> str:
        told = self.certificate
        head = f"exact: {told.replayed:,} of {told.steps:,} training steps gave the same bits again"
        if not self.exact:
            head = f"not exact: {self.differs}"
        count = f"{self.stretches} stretch" + ("" if self.stretches == 1 else "es")
        return f"{head} ({count} from state to state); certificate in {self.path}"

    __repr__ = __str__


class _Comparing:
    """Stands in for sinks and boundary during the replay."""

    def __init__(self, compared: Compared) -> None:
        self.compared = compared

    def emit(self, event: Event) -> None:
        """Compare what the steps measured."""
        if isinstance(event, MetricBlock):
            self.compared.take(event)

    def reached(self, position: Position) -> None:
        """Take no keyframe."""

    def allowance(self, position: Position) -> int:
        """No bound."""
        return FAR


def stretches_of(replica: Replica, segments: int | None) -> list[tuple[State, Position, State | None]]:
    """The stretches of the run's way, each from one state to the next one: all, or so many of them."""
    saving = replica.saving
    here = replica.loop.position
    infos = sorted((info for info in saving.on_the_way() if info.key <= here.key), key=lambda info: info.key)
    if not infos:
        raise StateError("verify(replay=True) needs a state on the disk: .with_file_checkpointer()")
    followers: list[CheckpointInfo | None] = [*infos[1:], None]
    pairs = [*zip(infos, followers, strict=True)]
    found: list[tuple[State, Position, State | None]] = []
    if segments is not None and segments < len(pairs):
        step = len(pairs) / segments
        pairs = [pairs[int(number * step)] for number in range(segments)]
    for one, other in pairs:
        end = here if other is None else place_of(other)
        if place_of(one).key < end.key:
            there = None if other is None else saving.load_on_the_way(other)
            found.append((saving.load_on_the_way(one), end, there))
    return found


def replay(
    replica: Replica, stretches: Sequence[tuple[State, Position, State | None]]
) -> tuple[int, Difference | None]:
    """Take the steps of each stretch again; return how many training steps, and the first difference."""
    loop, taken, known = replica.loop, 0, replica.history.snapshot()
    with excursion(replica, what="verify(replay=True)", past=True):
        end_state = replica.capture()
        for state, end, there in stretches:
            tape = _Comparing(Compared(known))
            with replica.by_hand.code(state.position):
                replica.put_back(state)
                loop.look_around()
                loop.emit, loop.boundary = tape.emit, tape
                for position, repeat in replica.by_hand.edits(state.position, end):
                    loop.run(At(position))
                    repeat()
                if loop.run(At(end)) == "pause":
                    raise Paused(str(loop.position))
                taken += loop.iteration - state.position.iteration
                differs = tape.compared.difference(replica.carried.left_names(), replica.causes())
                if differs is None:
                    differs = _other_state(replica, end, there or end_state)
            if differs is not None:
                return taken, differs
    return taken, None


def _other_state(replica: Replica, end: Position, there: State) -> Difference | None:
    """Compare the state that the replay came to with the one that was kept there."""
    mine = Footprint(str(end), state_print(replica))
    replica.put_back(there)
    kept = Footprint(str(end), state_print(replica))
    found = first_difference([kept], [mine])
    if found is None:
        return None
    causes = replica.causes()
    why = f"likely from {'; '.join(causes)}" if causes else "the losses on the way were the same"
    return Difference(str(end), found[1], why)
