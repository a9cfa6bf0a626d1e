"""What a replica is made of, and its whole state: captured, and put back exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..checkpoint.info import Kind
from ..errors import LoggerError, MovedError
from ..event import Event, FanOut, Notice
from ..event.position import Position
from ..event.values import Record
from ..logger import History
from ..state.device_copies import together
from ..state.parts import MetricsPart, RngPart
from ..state.shape import Change
from ..state.snapshot import WRITES_ITSELF, Pending, Snapshots
from ..state.state import Part, State, require_fit
from ..state.timeline import Timeline
from .compared import ComparedWithLog
from .loop import Loop
from .lost_parts import lacks_own
from .rank_protocol import Ranks
from .replay import ByHand, NothingByHand
from .reshaping import Reshaping
from .saving import Saving
from .unheard import heard


class ReplicaState:
    """The parts of a replica, without the commands that move it."""

    def __init__(
        self,
        loop: Loop,
        parts: Mapping[str, Part],
        rng: RngPart,
        timeline: Timeline,
        history: History,
        sinks: FanOut,
        saving: Saving,
        changes: Sequence[Change] = (),
        fixed: bool = False,
    ) -> None:
        self.loop = loop
        self.parts = dict(parts)
        self.rng = rng
        self.shaping = Reshaping(loop, self.parts, rng, timeline, changes, fixed)
        self.shape = self.shaping.shape
        self.carried: Any = self.parts["carried"]  # what steps reach outside of model, optimizer, loaders
        self.timeline = timeline
        self.history = history
        self.sinks = sinks
        self.saving = saving
        self.snapshots = Snapshots()
        loop.modes.settle = self.settle
        self._soon: Pending | None = None
        """The last copy that may still be made. It does not hold the state, whose owner may free it."""
        self._deferring = True  # until the user was warned that training waits for its copies
        self._saved_soon: tuple[Position, Kind] | None = None  # the checkpoint that is written from it
        self._lost: tuple[Position, Kind] | None = None  # a checkpoint whose copy was void
        self._failure: LoggerError | MovedError | None = None
        self._expected: ComparedWithLog | None = None
        self._owed: tuple[Position, str] | None = None
        """Where the sums of this pass are not those of these metrics, and why."""
        self.by_hand: ByHand = NothingByHand()
        self.line: Record | None = None
        """The record of the line that is looked at, if that is not the run's own."""
        self.causes: Callable[[], Sequence[str]] = tuple
        self._left: tuple[Position, dict[str, Any]] = (loop.position, {})
        """The position that the run was put to, and the parts of that state that no part here has taken."""
        loop.emit = self.emit

    @property
    def past(self) -> Record:
        """What was measured: on the run's line, or on one that it has left while that is looked at."""
        return self.history.snapshot() if self.line is None else self.line

    @property
    def ranks(self) -> Ranks | None:
        """The other ranks, if this is one of several."""
        return self.loop.ranks

    def capture(self) -> State:
        """Everything that a step can change, at this boundary."""
        return State(self.loop.position, self._captured_parts(), self.history.snapshot())

    def _captured_parts(self) -> dict[str, Any]:
        with together():
            parts = self.unclaimed() | {name: part.capture() for name, part in self.parts.items()}
        if self.ranks is not None:
            self.ranks.capture(parts)
        return parts

    def whole(self) -> None:
        """Call this before code reads the weights: they are then here, not in parts on several devices."""
        if self.ranks is not None:
            self.ranks.whole()

    def have_ranks_follow(self) -> None:
        """Call this after a change of this rank's state at a boundary inside of a run."""
        if self.ranks is not None:
            self.ranks.follow()

    def settle(self) -> None:
        """Call this before any code changes the weights: the copy in progress is then complete, or void."""
        deferring = self._deferring
        self.snapshots.settle()
        self._deferring = self.snapshots.deferring
        (soon, self._soon), (saved, self._saved_soon) = (self._soon, None), (self._saved_soon, None)
        if soon is not None and not soon.wait():
            self.timeline.keyframes = [kept for kept in self.timeline.keyframes if kept.ready != soon.wait]
            self._lost = saved
        if deferring and not self._deferring:
            self._warn(WRITES_ITSELF)

    def put_back(self, state: State) -> None:
        """Restore everything that a step can change; history and logs get no event."""
        self.settle()
        if self.ranks is not None:
            self.ranks.lay_down()
        before = self.shape.go_to(state.parts.get("shape"), state.position.key)
        try:
            require_fit(self.parts, state)
        except BaseException:
            self.shape.back_to(before)
            raise
        for name, part in self.parts.items():
            if part is not self.shape:
                part.restore(state.parts[name])
        if self.ranks is not None:
            self.ranks.put_back(state)
        elif lacks_own(state) and state.parts["window"]["count"]:
            self._warn("this state lacks what other devices, which had died, had summed for the next update")
        of_a_split = [name for name in state.parts if name.startswith(("data ", "metrics "))]
        left = [name for name in of_a_split if name not in self.parts]
        self._left = state.position, {name: state.parts[name] for name in left}

    def unclaimed(self) -> dict[str, Any]:
        """The parts of the restored state that belong to splits whose data has not come yet: their positions,
        for data that comes with `fit`, and for every state that is captured before."""
        position, left = self._left
        return dict(left) if left and position.key == self.loop.position.key else {}

    def with_own_metrics(self, state: State) -> tuple[State, str]:
        """A state with the sums of these metrics. If it lacks those of its pass, words say so."""
        parts, owed = dict(state.parts), ""
        for name, part in self.parts.items():
            if isinstance(part, MetricsPart) and name in parts:
                parts[name], lacks = part.own(parts[name])
                if state.position.step and name == f"metrics {state.position.split}":
                    owed = lacks
        return replace(state, parts=parts), owed

    def claim(self, name: str) -> Any:
        """Return one of them, when its data has come; None if the state has no such part."""
        found = self.unclaimed().get(name)
        self._left[1].pop(name, None)
        return found

    def emit(self, event: Event) -> None:
        """Send an event. A failing logger has kept it; training ends at the next boundary."""
        try:
            with heard():  # also in a replay, which is silent otherwise
                self.sinks.emit(event)
        except LoggerError as failure:
            self._failure = self.saving.cause_of(failure)
        if self._expected is not None and (told := self._expected.heard(event, self.carried.left_names)):
            self._warn(told)

    def _warn(self, text: str) -> None:
        self.emit(Notice(text, "warning"))
