"""Going through a set beside the training: batch by batch, in blocks, with progress, to be broken off at
any step. What `evaluate` measures on the way; `predict` takes the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError, Paused, a_kind
from ..event import Evaluated, Event, MetricBlock, MetricInfo, SetProgress, SplitRecord
from ..event.join import joined
from ..metric import MetricGroup, TextMetric
from ..metric.base import AnyMetric
from ..metric.copies import own_copy
from .ambient import ambient_kept_on_error
from .control import Control
from .data.batch import count_samples
from .data.cursor import Cursor
from .data.sampling import END
from .failure import release_device_memory
from .loop import Pace
from .position import Position
from .step.step import ValidationStep

Take = Callable[[Any], None]
Read = Callable[[int, float], None]


class Tour:
    """One way through a loader.

    Args:
        what: is done there, for people: "evaluate test".
        cursor: of the loader.
        control: where somebody may ask for a pause.
        emit: told about ten times a second how far it came.
        device: that steps run on.
        epoch: of the training. Samplers and seeds that go by the epoch do as in a validation there.
    """

    def __init__(
        self,
        what: str,
        cursor: Cursor,
        control: Control,
        emit: Callable[[Event], None],
        device: torch.device,
        epoch: int = 1,
    ) -> None:
        self.what = what
        self.cursor = cursor
        self.device = device
        self.done = 0
        """Batches that were taken."""
        self.pace = Pace()
        self._control = control
        self._emit = emit
        self._epoch = epoch

    def go(self, take: Take, read: Read = lambda count, seconds: None) -> None:
        """Give every batch to `take`; tell `read` after each block how many there were, and their time.

        Raises:
            Paused: somebody asked for a pause, or pressed Ctrl-C.
            DataError: there was no batch.
        """
        __tracebackhide__ = True
        self.cursor.begin(self._epoch)
        try:
            self._blocks(take, read)
        except BaseException as error:
            if not isinstance(error, Paused):
                self._explain(error)
            release_device_memory(error, self.device)
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
        ended = False
        while not ended:
            self._tell()
            before, started = self.done, perf_counter()
            with ambient_kept_on_error(self.device.type):
                self._control.interruptible = True
                try:
                    ended = self._block(self.pace.steps, take)
                finally:
                    self._control.interruptible = False
            count, seconds = self.done - before, perf_counter() - started
            self.pace.took(count, seconds)
            if count:
                read(count, seconds)
            if not ended and self._control.take_at_once():
                raise Paused(self.what, told=f"{self.what}: broken off {self._place}; {_AS_BEFORE}")

    def _block(self, budget: int, take: Take) -> bool:
        __tracebackhide__ = True
        fetch, control = self.pace.counting(self.cursor.fetch), self._control
        for _ in range(budget):
            batch = fetch()
            if batch is END:
                return True
            take(batch)
            self.done += 1
            if control.wanted:
                break
        return False

    @property
    def _place(self) -> str:
        total = self.cursor.total
        return f"after batch {self.done}" + ("" if total is None else f" of {total}")

    def _tell(self, over: bool = False) -> None:
        self._emit(SetProgress(self.what, self.done, self.cursor.total, over))

    def _explain(self, error: BaseException) -> None:
        """Python prints notes below the traceback; 3.10 does not, but whoever formats it can."""
        note = f"{self.what}: this happened {self._place}; {_AS_BEFORE}"
        notes = [*getattr(error, "__notes__", ()), note]
        setattr(error, "__notes__", notes)  # noqa: B010  (3.10 has no such attribute to check)


_AS_BEFORE = "nothing was recorded of it, and the model stands as it did before"


class _SetContext:
    """Answers metrics' questions about a batch of a set."""

    def __init__(self, pace: Pace) -> None:
        self.batch: Any = None
        self.output: Any = None
        self._pace = pace

    @property
    def samples(self) -> int:
        return count_samples(self.batch)

    @property
    def learning_rates(self) -> list[float]:
        """Nothing is learned here."""
        return []

    @property
    def grad_norm(self) -> Tensor | None:
        return None

    @property
    def steps_per_second(self) -> float:
        return self._pace.rate

    @property
    def data_wait(self) -> float:
        return self._pace.data_wait


def evaluate_set(
    name: str, tour: Tour, step: ValidationStep, metrics: Iterable[AnyMetric], at: Position
) -> Evaluated:
    """Measure a set: the values of each batch, and those of the whole set.

    Args:
        name: of the set.
        tour: through it.
        step: of the validation.
        metrics: they stay as they are; copies of them measure.
        at: where the training stands.
    """
    __tracebackhide__ = True
    group = MetricGroup([own_copy(metric) for metric in metrics])
    context = _SetContext(tour.pace)
    group.attach(context)
    group.reset()
    blocks: list[MetricBlock] = []

    def take(batch: Any) -> None:
        __tracebackhide__ = True
        context.batch = batch
        context.output = output = step(batch, False)
        group.collect(output)

    def read(count: int, seconds: float) -> None:
        columns, texts = group.read()
        first = tour.done - count + 1
        blocks.append(MetricBlock(at.epoch, "valid", first, count, at.iteration, columns, texts, seconds))

    tour.go(take, read)
    record = SplitRecord(at.epoch, "valid", tuple(joined(blocks)), group.finals())
    return Evaluated(name, at.epoch, at.split, at.step, record, _infos(group.metrics))


def _infos(metrics: Sequence[AnyMetric]) -> tuple[MetricInfo, ...]:
    return tuple(
        MetricInfo(metric.name, "valid", kind="text", plotted=False)
        if isinstance(metric, TextMetric)
        else MetricInfo(metric.name, "valid", metric.unit, metric.higher_is_better)
        for metric in metrics
    )
