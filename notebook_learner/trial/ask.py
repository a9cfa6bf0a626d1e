"""Computes what was not measured: steps of the past are taken again, aside, and looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ..artifacts.tables import Table
from ..checkpoint.info import CheckpointInfo
from ..errors import Paused, StoreError
from ..event import MetricBlock, Notice, SplitEnded, SplitRecord
from ..event.position import Position, after_training_step
from ..event.values import Event, Record, SetProgress, Split
from ..metric.base import AnyMetric
from ..run.bounds import FAR, At
from ..run.compared import Compared, Difference
from ..run.loop import Loop
from ..run.replay import Edit, steps_until
from ..run.replica import Replica
from ..run.unheard import heard
from ..state.checkpoint_files import place_of
from .changes import Changes, changed
from .excursion import excursion
from .footprint import Footprint, first_difference, named

PATIENCE = 1.0
"""Seconds until the user sees the first progress."""


class Stretch(NamedTuple):
    """Training steps, from the first to the last."""

    first: int
    last: int


@dataclass(frozen=True, repr=False)
class PastAnswer:
    """What a function said of the moments of the past, step by step.

    `iteration`, `epoch` and `step` say which step it was; `value` has what the function returned, as an array
    if all are numbers. `exact` says whether the steps measured again what was recorded of them.
    """

    iteration: np.ndarray[Any, np.dtype[np.int64]]
    epoch: np.ndarray[Any, np.dtype[np.int64]]
    step: np.ndarray[Any, np.dtype[np.int64]]
    value: Any
    differs: Difference | None = None

    @property
    def exact(self) -> bool:
        """Whether the steps measured again what was recorded of them."""
        return self.differs is None

    def __len__(self) -> int:
        return len(self.iteration)

    def _table(self) -> Table:
        from ..renderer.text import number

        rows = []
        for at in self._shown():
            value = self.value[at]
            said = number(float(value)) if isinstance(value, (int, float, np.number)) else _short(value)
            rows.append((str(self.iteration[at]), f"{self.epoch[at]}", f"{self.step[at]}", said))
        title = "" if self.differs is None else f"not exact: {self.differs}"
        return Table(title, ("training step", "epoch", "step", "value"), rows, (True, True, True, True))

    def _shown(self) -> Sequence[int]:
        count = len(self)
        return range(count) if count <= 20 else [*range(10), *range(count - 10, count)]

    def __repr__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()


def _short(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {list(value.shape)}"
    return f"{value!r:.60}"


class _PastTape:
    """Stands in for sinks and boundary during the replay.

    Args:
        known: what was measured the first time.
        replica: what takes the steps.
        function: what is asked after a step, if it is no metric.
        wanted: after which training steps.
    """

    def __init__(
        self,
        known: Record,
        replica: Replica,
        function: Callable[[], Any] | None = None,
        wanted: Collection[int] = (),
    ) -> None:
        self.known = known
        self.rows: list[tuple[Position, Any]] = []
        self.passes: dict[tuple[int, Split], SplitRecord] = {}
        self.length = 0
        """How many steps there are to take."""
        self._replica, self._function, self._wanted = replica, function, wanted
        self._compared, self._steps = Compared(known), 0
        self._elsewhere: Difference | None = None
        self._began, self._shown = perf_counter(), False

    @property
    def differs(self) -> Difference | None:
        """The first value that was not the one that was recorded, or else what another state had than the
        checkpoint there."""
        left, causes = self._replica.carried.left_names(), self._replica.causes()
        return self._compared.difference(left, causes) or self._elsewhere

    def compare(self, info: CheckpointInfo) -> None:
        """Compare weights and what the optimizer remembers with a checkpoint of the place reached."""
        if self._elsewhere is None:
            try:
                there = self._replica.saving.load_on_the_way(info).parts
            except StoreError as damage:
                self._replica.emit(Notice(f"ask() compares nothing with checkpoint {info.label}: {damage}"))
                return
            pair = [[Footprint("", dict(_learned(each)))] for each in (there, self._replica.capture().parts)]
            if found := first_difference(*pair):
                why = f"checkpoint {info.label} has another one, though the values on the way were the same"
                self._elsewhere = Difference(str(place_of(info)), found[1], why)

    def pass_by(self, event: Event) -> None:
        """Compare what the steps before the stretch measured."""
        if isinstance(event, MetricBlock):
            self._compared.take(event)
            self._steps += event.count

    def emit(self, event: Event) -> None:
        """Keep what the steps of the stretch measured."""
        self.pass_by(event)
        if isinstance(event, MetricBlock):
            part = self._pass_of(event)
            self.passes[event.epoch, event.split] = replace(part, blocks=(*part.blocks, event))
            at = self._replica.loop.position
            if self._function is not None and event.split == "train" and at.iteration in self._wanted:
                with heard():  # it runs for the first time
                    self.rows.append((at, _kept(self._function())))
        elif isinstance(event, SplitEnded):
            self.passes[event.epoch, event.split] = replace(self._pass_of(event), finals=dict(event.finals))

    def _pass_of(self, event: MetricBlock | SplitEnded) -> SplitRecord:
        nothing = SplitRecord(event.epoch, event.split, ())
        return self.passes.get((event.epoch, event.split), nothing)

    def reached(self, position: Position) -> None:
        """Show the progress of a long way; take no keyframe."""
        if perf_counter() - self._began > PATIENCE:
            self.tell()

    def allowance(self, position: Position) -> int:
        """One step at a time, if each is asked."""
        return FAR if self._function is None else 1

    def tell(self, over: bool = False) -> None:
        """Show the user how far the way is."""
        if self._shown or not over:
            self._shown = not over
            what = "on the way through the past"
            self._replica.emit(SetProgress(what, self._steps, self.length, over, unit="step"))


def _learned(parts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield from named(parts["model"], "model")
    # Its options may have been set by hand at this very place, before or after the checkpoint was saved.
    yield from (each for each in named(parts["optimizer"], "optimizer") if ".groups[" not in each[0])


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = value.detach()
        return value.item() if value.numel() == 1 else value.clone()
    return value


def ask_function(
    replica: Replica, function: Callable[[], Any], first: int, last: int, every: int
) -> PastAnswer:
    """Ask a function after training step `first`, and after every so many steps up to `last`."""
    known = replica.past
    start = after_training_step(known, first - 1)
    wanted, target = range(first, last + 1, every), after_training_step(known, last)
    tape = _taken_again(replica, start, target, _PastTape(known, replica, function, wanted))
    values: Any = [value for _, value in tape.rows]
    if all(isinstance(value, (bool, int, float, np.number)) for value in values):
        values = np.array(values, np.float64)
    iteration, epoch, step = (
        np.array([getattr(at, name) for at, _ in tape.rows], np.int64)
        for name in ("iteration", "epoch", "step")
    )
    return PastAnswer(iteration, epoch, step, values, tape.differs)


def ask_metrics(
    replica: Replica, metrics: Sequence[AnyMetric], first: int, last: int
) -> tuple[Record, Difference | None]:
    """Measure metrics over the epochs of these training steps; return what they measured, pass by pass, and
    the first difference from what was recorded."""
    known = replica.past
    start = Position(
        after_training_step(known, first - 1).epoch, "train", 0
    )  # epoch values are of whole epochs
    target = after_training_step(known, last)
    if last == sum(part.steps for part in known if part.split == "train"):
        target = replica.loop.position  # with the validation behind it
    tape = _taken_again(replica, start, target, _PastTape(known, replica), metrics)
    names = {metric.name for metric in metrics}
    return tuple(_only(part, names) for part in tape.passes.values()), tape.differs


def _taken_again(
    replica: Replica, start: Position, target: Position, tape: _PastTape, metrics: Sequence[AnyMetric] = ()
) -> _PastTape:
    """Take the steps from one place to another again, aside: afterwards all is as it was."""
    loop = replica.loop
    state = replica.state_before(start)
    tape.length = steps_until(tape.known, target) - steps_until(tape.known, state.position)
    with excursion(replica, what="ask()", past=True), ExitStack() as stack:
        stack.enter_context(replica.by_hand.code(state.position))
        replica.put_back(state)
        loop.look_around()
        loop.emit = tape.pass_by
        loop.boundary = tape
        _walk(loop, replica.by_hand.edits(state.position, start), start)
        loop.emit = tape.emit
        if metrics:
            changes = Changes(metrics=metrics)
            stack.enter_context(changed(loop, changes))
            if replica.ranks is not None:
                replica.ranks.walk(changes)
        _walk(loop, [*_checks(replica, tape, start, target), *replica.by_hand.edits(start, target)], target)
    tape.tell(over=True)
    return tape


def _checks(replica: Replica, tape: _PastTape, start: Position, target: Position) -> list[Edit]:
    """The comparisons with the checkpoints in a stretch, each at its place."""
    if replica.ranks is not None:  # each rank has a part of the state, and a file has the whole
        return []
    known = {place_of(info): info for info in replica.saving.on_the_way()}
    return [(at, partial(tape.compare, info)) for at, info in known.items() if start < at <= target]


def _walk(loop: Loop, edits: Sequence[Edit], target: Position) -> None:
    for position, repeat in sorted(edits, key=lambda edit: edit[0].key):
        loop.run(At(position))
        repeat()
    if loop.run(At(target)) == "pause":
        raise Paused(str(loop.position))


def _only(part: SplitRecord, names: Collection[str]) -> SplitRecord:
    """A pass with the values of these metrics alone."""
    blocks = [
        replace(
            each,
            columns={name: column for name, column in each.columns.items() if name in names},
            texts={name: text for name, text in each.texts.items() if name in names},
            text_runs={name: runs for name, runs in each.text_runs.items() if name in names},
        )
        for each in part.blocks
    ]
    finals = part.finals and {name: value for name, value in part.finals.items() if name in names}
    return SplitRecord(part.epoch, part.split, tuple(blocks), finals)


def joined(answers: Sequence[PastAnswer]) -> PastAnswer:
    """The answers of stretches, one after the other, as one."""
    if len(answers) == 1:
        return answers[0]
    values: Any = [value for each in answers for value in each.value]
    if all(isinstance(each.value, np.ndarray) for each in answers):
        values = np.concatenate([each.value for each in answers])
    iteration, epoch, step = (
        np.concatenate([getattr(each, name) for each in answers]) for name in ("iteration", "epoch", "step")
    )
    differs = next((each.differs for each in answers if each.differs is not None), None)
    return PastAnswer(iteration, epoch, step, values, differs)


def numbers_of(steps: Any, taken: int) -> tuple[int, int]:
    """The first and the last training step of what `ask(steps=...)` was given; all by default.

    >>> numbers_of(None, 40), numbers_of((3, 9), 40), numbers_of(range(3, 9), 40), numbers_of(7, 40)
    ((1, 40), (3, 9), (3, 8), (7, 7))
    """
    if steps is None:
        found = (1, taken)
    elif isinstance(steps, int):
        found = (steps, steps)
    elif isinstance(steps, range):
        found = (steps[0], steps[-1]) if len(steps) else (1, 0)
    else:
        first, last = steps
        found = (int(first), int(last))
    if not 1 <= found[0] <= found[1] <= taken:
        raise ValueError(
            f"ask(steps={steps!r}): give training steps from 1 to {taken}, which the run has taken"
        )
    return found
