"""A pass through a set outside the training: batch by batch, in blocks, with progress. The user can break it
off at any step. `evaluate` measures metrics on the way; `predict` uses the same pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..data.batch import count_samples
from ..data.cursor import Cursor
from ..data.rank_share import Idle
from ..data.rng import capture_generators, restore_generators
from ..data.sampling import END
from ..errors import DataError, Paused, StateError, a_kind
from ..event import Evaluated, Event, MetricBlock, MetricInfo, SetProgress, SplitRecord
from ..event.position import Position
from ..event.record import joined
from ..metric import MetricGroup, TextMetric
from ..metric.base import AnyMetric, own_copy
from ..metric.rows import Rows
from ..metric.torch_metric import objects_kept
from ..run.control import Control
from ..run.failure import out_of_memory, release_device_memory
from ..run.loop import BlockPace, Loop, Visit
from ..run.modes import ambient_kept_on_error
from ..run.rank_protocol import Alone, Others
from ..run.replica import Replica
from ..run.step_undo import aside
from ..state.parts import CursorPart
from ..step.step import ValidationStep

_TRAINING_ALONE = ("optimizer", "scheduler", "scaler", "early_stopping", "rng")
"""The parts that no validation step touches. An optimizer's state is twice as large as the model, so it is
not copied. Random streams are only borrowed."""


@contextmanager
def beside(replica: Replica, cursor: Cursor, what: str) -> Iterator[None]:
    """Inside, the model is in validation mode, and its steps may run. Afterwards, also after an error,
    everything is put back: weights and buffers, gradients, modes, random generators, and the place in the
    data, even if the cursor belongs to one of the training's own loaders. It costs a copy of the weights.

    Raises:
        StateError: the loader is the training's own, and can be walked only once.
    """
    loop = replica.loop
    sharing = _sharing(replica, cursor, what)
    replica.settle()
    places = [(part, part.capture()) for part in sharing]
    for part in sharing:
        part.cursor().drop()  # persistent workers are about to begin another epoch
    generators = cursor.walk.generators
    drawn = capture_generators(generators)
    try:
        with (
            replica.rng.lent(),
            loop.modes.kept(),
            objects_kept(loop.modes.validated, anew=True),
            aside(loop, replica.parts, but=_TRAINING_ALONE),
        ):
            loop.modes.enter("valid")
            loop.visit = Visit(loop.modes.validated)
            yield
    finally:
        loop.visit = None
        cursor.close()
        restore_generators(generators, drawn)
        for part, place in places:
            part.restore(place)


def _sharing(replica: Replica, cursor: Cursor, what: str) -> list[CursorPart]:
    """The training's own places in the loaders that the cursor walks, too."""
    found = []
    for split, each in replica.loop.passes.items():
        if each.cursor.source is cursor.source:
            if not cursor.walks_again:
                raise StateError(
                    f"{what}: this is the {split} loader of the training, and it can be walked only once, so "
                    "the training would miss its batches; give a list, a DataLoader, or an object whose "
                    "__iter__ starts anew"
                )
            part = replica.parts[f"data {split}"]
            assert isinstance(part, CursorPart)
            found.append(part)
    return found


Take = Callable[[Any], None]
Read = Callable[[int, float, Sequence[Any]], None]


class Tour:
    """One pass through a loader.

    Args:
        what: what the pass does, for messages: "evaluate test".
        cursor: the cursor of the loader.
        control: where the user may request a pause.
        emit: called about ten times a second with the progress.
        device: the device that steps run on.
        epoch: the epoch of the training. Samplers and seeds that depend on the epoch act as in its
            validation.
        others: the other ranks, if they take part. The cursor is theirs, too.
    """

    def __init__(
        self,
        what: str,
        cursor: Cursor,
        control: Control,
        emit: Callable[[Event], None],
        device: torch.device,
        epoch: int = 1,
        others: Others | None = None,
    ) -> None:
        self.what = what
        self.cursor = cursor
        self.device = device
        self.done = 0
        """The number of batches that were taken."""
        self.pace = BlockPace()
        self._control = control
        self._emit = emit
        self._epoch = epoch
        self.others = others

    def go(self, take: Take, read: Read = lambda count, seconds, others: None) -> None:
        """Give every batch, or this rank's part of it, to `take`. After each block, call `read` with the
        number of batches, their time, and what other ranks found in them.

        Raises:
            Paused: the user requested a pause, or pressed Ctrl-C.
            DataError: there was no batch.
        """
        __tracebackhide__ = True
        self.cursor.begin(self._epoch)
        try:
            if self.others is not None:
                self.others.open(self._epoch)
            self._blocks(take, read)
        except BaseException as error:
            cause = error if self.others is None else self.others.fault(error)
            if not isinstance(cause, (Paused, Alone)):
                self._explain(cause)
            release_device_memory(error, self.device)
            if cause is not error:
                raise cause from error
            raise
        finally:
            self.cursor.close()
            self._tell(over=True)
        if not self.done:
            raise DataError(
                f"{self.what}: the loader, {a_kind(self.cursor.loader)}, yielded no batch; look at "
                "the dataset's length, the batch size and drop_last=True, and whether it was walked already"
            )

    def _blocks(self, take: Take, read: Read) -> None:
        __tracebackhide__ = True
        ended, others = False, self.others
        while not ended:
            self._tell()
            before, started = self.done, perf_counter()
            with ambient_kept_on_error(self.device.type):
                self._control.interruptible = True
                try:
                    if others is not None:
                        others.begin(self.pace.steps)
                    ended = self._block(self.pace.steps, take)
                finally:
                    self._control.interruptible = False
            count, seconds = self.done - before, perf_counter() - started
            self.pace.took(count, seconds)
            found = () if others is None else others.gather(count)
            if count:
                read(count, seconds, found)
            if not ended and self._control.take_at_once():
                raise Paused(self.what, told=f"{self.what}: broken off {self._place}; {_AS_BEFORE}")

    def _block(self, budget: int, take: Take) -> bool:
        __tracebackhide__ = True
        control, alone = self._control, self.others is None
        fetch = self.pace.counting(self.cursor.fetch if self.others is None else self.others.fetch)
        for _ in range(budget):
            batch = fetch()
            if batch is END:
                return True
            take(batch)
            self.done += 1
            if control.wanted and alone:  # several ranks end a block together
                break
        return False

    @property
    def _place(self) -> str:
        total = self.cursor.total
        return f"after batch {self.done}" + ("" if total is None else f" of {total}")

    def _tell(self, over: bool = False) -> None:
        self._emit(SetProgress(self.what, self.done, self.cursor.total, over))

    def _explain(self, error: BaseException) -> None:
        """Add a note. Python prints notes below the traceback. 3.10 does not, but other code can still read
        them."""
        note = f"{self.what}: this happened {self._place}; {_AS_BEFORE}"
        if told := out_of_memory(error, self.device):
            note += f". {told} {_SMALLER}"
        notes = [*getattr(error, "__notes__", ()), note]
        setattr(error, "__notes__", notes)  # noqa: B010  (3.10 has no such attribute to check)


_SMALLER = "Give a loader with a smaller batch size: the values are the same"
_AS_BEFORE = "nothing was recorded of it, and the model stands as it did before"


class _SetContext:
    """Answers metrics' questions about a batch of a set."""

    def __init__(self, pace: BlockPace) -> None:
        self.batch: Any = None
        self.output: Any = None
        self._pace = pace

    @property
    def samples(self) -> int:
        return count_samples(self.batch)

    @property
    def learning_rates(self) -> list[float]:
        """No rates: a set is only measured."""
        return []

    @property
    def grad_norm(self) -> Tensor | None:
        return None

    def rates_of(self, optimizer: str) -> list[float]:
        """No rates, either."""
        return []

    def norm_of(self, optimizer: str) -> Tensor | None:
        return None

    @property
    def steps_per_second(self) -> float:
        return self._pace.rate

    @property
    def data_wait(self) -> float:
        return self._pace.data_wait


class Measuring:
    """Measures batches of a set, or a rank's parts of them.

    Args:
        step: the step of the validation.
        metrics: they stay unchanged; copies of them measure.
        pace: the pace of the tour.
        visit: the visit of the set, if a Learner pays it: values that its steps log are measured, too.
    """

    def __init__(
        self, step: ValidationStep, metrics: Iterable[AnyMetric], pace: BlockPace, visit: Visit | None = None
    ) -> None:
        self.group = MetricGroup([own_copy(metric) for metric in metrics])
        self._step = step
        self._context = _SetContext(pace)
        self.group.attach(self._context)
        self.group.reset()
        if visit is not None:
            visit.metrics = self.group
            self.group.owner = lambda: visit.model

    def take(self, batch: Any) -> None:
        """Measure one batch."""
        __tracebackhide__ = True
        if isinstance(batch, Idle):
            self.group.skip()
            return
        context = self._context
        context.batch = batch
        context.output = output = self._step(batch, False)
        self.group.collect(output)

    def told(self) -> Rows:
        """Return what was measured since the last call, for rank 0."""
        return self.group.rows()


def evaluate_set(
    name: str,
    tour: Tour,
    step: ValidationStep,
    metrics: Iterable[AnyMetric],
    at: Position,
    loop: Loop | None = None,
) -> Evaluated:
    """Measure a set: the values of each batch, and those of the whole set.

    Args:
        name: the name of the set.
        tour: the pass through it.
        step: the step of the validation.
        metrics: they stay unchanged; copies of them measure.
        at: the position of the training.
        loop: the loop that stands there, if a Learner evaluates.
    """
    __tracebackhide__ = True
    measuring = Measuring(step, metrics, tour.pace, None if loop is None else loop.visit)
    group = measuring.group
    blocks: list[MetricBlock] = []

    def read(count: int, seconds: float, others: Sequence[Rows]) -> None:
        columns, texts = group.read(others)
        first = tour.done - count + 1
        blocks.append(MetricBlock(at.epoch, "valid", first, count, at.iteration, columns, texts, seconds))

    tour.go(measuring.take, read)
    if loop is not None and loop.closing is not None:
        loop.closing("valid")
    record = SplitRecord(at.epoch, "valid", tuple(joined(blocks)), group.finals())
    return Evaluated(name, at.epoch, at.split, at.step, record, _infos(group.metrics))


def _infos(metrics: Sequence[AnyMetric]) -> tuple[MetricInfo, ...]:
    return tuple(
        MetricInfo(metric.name, "valid", kind="text", plotted=False)
        if isinstance(metric, TextMetric)
        else MetricInfo(metric.name, "valid", metric.unit, metric.higher_is_better)
        for metric in metrics
    )
