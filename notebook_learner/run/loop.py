"""The state machine of training, with one verb: `run(until)`.

    train steps -> close the split -> valid steps -> close the split -> end of epoch -> next epoch

All methods that train (fit, step, the panel, replay) call `run` with another bound. Between two steps the
loop stands at a boundary. At any boundary it can stop, capture its state or go on. It takes steps in blocks
of about a tenth of a second. Inside a block there is no clock, no lock, no event and no device read; after
it the metric values are sent as one event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Literal, Protocol

from torch import Tensor

from ..data.batch import count_samples
from ..data.cursor import Cursor
from ..data.sampling import END
from ..errors import DataError, a_kind
from ..event import EpochEnded, Event, MetricBlock, Record, Sheet, Split, SplitEnded, SplitStarted
from ..event.position import Position
from ..metric import MetricGroup
from ..step.optimizers import named_of
from ..step.schedule import Schedule
from ..step.step import TrainingStep, ValidationStep
from ..step.update import Update
from .bounds import Until
from .control import Control
from .modes import Modes, ambient_kept_on_error
from .rank_protocol import Hands, Place, Ranks
from .trained_models import TrainedBefore

Why = Literal["budget", "pause", "breakpoint", "stop", "finished"]
After = Literal["update", "validated", "epoch"]
"""Where functions of the user are called, as a part of the run."""
Finals = Mapping[tuple[Split, str], float]


@dataclass
class Pass:
    """What the loop needs to go through one split."""

    cursor: Cursor
    step: TrainingStep | ValidationStep
    metrics: MetricGroup


class Policy(Protocol):
    """A rule that the loop asks at the end of every epoch; True means that training is finished."""

    def after_epoch(self, epoch: int, finals: Finals) -> bool:
        """Look at the epoch's values."""

    def again(self) -> None:
        """The user wants more epochs although training was finished."""


class Boundary(Protocol):
    """An object that is called at every boundary between blocks. It may shorten the next block."""

    def reached(self, position: Position) -> None:
        """The loop stands here now."""

    def allowance(self, position: Position) -> int:
        """The most steps that the next block may take."""


class Watcher(Protocol):
    """Checks every block before the listeners get it, and may end the run there by an exception."""

    late: Any
    """What it found too late to go back; the run ends at the next boundary."""

    def allowance(self, position: Position) -> int:
        """How many steps may be taken before the next call."""

    def look_again(self) -> None:
        """Layers or groups have come or gone."""

    def unread(self) -> list[list[Any]]:
        """What it measured on devices since the last block; it may be read for it, with the metrics."""

    def judge(self, block: MetricBlock) -> None:
        """A block was measured."""


@dataclass
class Visit:
    """A set that is gone through while the loop stands still."""

    model: Any
    """The model that it is given to."""
    metrics: MetricGroup | None = None
    """What measures it, if anything does; values that its steps log go there."""


class BlockPace:
    """Finds how many steps take a tenth of a second. It is a count, so no step reads a clock. It may at
    most double, so a sudden slow-down makes only one block late."""

    TARGET = 0.1
    MOST = 4096

    def __init__(self) -> None:
        self.steps = 1
        self.rate = 0.0
        self.data_wait = 0.0
        """The percentage of the last block's time that the counted fetches took."""
        self._waited = 0.0

    def counting(self, fetch: Callable[[], Any]) -> Callable[[], Any]:
        """A fetch whose time is counted: it reads the clock twice, about 0.1 us."""

        def counted() -> Any:
            began = perf_counter()
            try:
                return fetch()
            finally:
                self._waited += perf_counter() - began

        return counted

    def took(self, steps: int, seconds: float) -> None:
        waited, self._waited = self._waited, 0.0
        if steps and seconds > 0:
            self.data_wait = 100.0 * waited / seconds
            self.rate = steps / seconds
            self.steps = max(1, min(int(self.rate * self.TARGET), 2 * self.steps, self.MOST))


@dataclass(frozen=True)
class Act:
    """A function of the user, with the learner that it gets. It does not keep the learner alive."""

    function: Callable[[Any], Any]
    learner: Callable[[], Any]

    def __call__(self) -> None:
        __tracebackhide__ = True
        self.function(self.learner())


class Loop:
    """The position of training, and the methods that move it."""

    def __init__(
        self,
        passes: Mapping[Split, Pass],
        update: Update,
        schedule: Schedule,
        modes: Modes,
        control: Control,
        emit: Callable[[Event], None],
        *,
        num_epochs: int,
        policies: Iterable[Policy] = (),
    ) -> None:
        self.passes = passes
        self.update = update
        self.schedule = schedule
        self.modes = modes
        modes.optimizers = lambda: named_of(update.optimizer).values()
        self.control = control
        self.emit = emit
        self.num_epochs = num_epochs
        self.policies = tuple(policies)
        self.boundary: Boundary | None = None
        self.watch: Watcher | None = None
        self.before: TrainedBefore | None = None
        """What is known of earlier trainings of the model."""
        self.counts_waits = False
        """Whether a metric asks how long steps wait for their batches."""
        self.noted: Boundary | None = None
        """Changes that are made again where they were made before a rewind."""
        self.acts: dict[After, list[Act]] = {}
        """Functions of the user that are called after each update, validation or epoch."""
        self.closing: Callable[[Split], None] | None = None
        """Called at a split's end, before its values are read: values of the whole epoch may be logged."""
        self.acting: After | None = None
        """The place whose functions run now."""
        self.ranks: Ranks | None = None
        """The other ranks, if there are any and this is rank 0."""
        self.epoch = 1
        self.split: Split = "train"
        self.done = 0
        """Finished steps of this split in this epoch. Adding one to it commits a step."""
        self.trained = 0
        """Finished training steps of the whole run before this split began."""
        self.ended = False
        """True if a policy finished training before its last epoch."""
        self.finals: dict[tuple[Split, str], float] = {}
        self.batch: Any = None
        """The batch of the last step, as the loader gave it."""
        self.output: Any = None
        self.pace = BlockPace()
        self.breakable = True
        """False while a replay restores the state: then a second interrupt does not raise in a step."""
        self.passing = False
        """True during a replay, in which no user may hold the loop and look."""
        self.trying = False
        """True while steps are tried with another schedule, step or data, which are not the run's."""
        self.quiet = False
        """True while a step is only inspected: it does not count."""
        self.visit: Visit | None = None
        """The set that is gone through now, beside the training."""
        self._open = False
        self._read = 0
        """Steps of this split whose values were sent."""

    # Where it stands ---------------------------------------------------------------------------------

    @property
    def current(self) -> Pass:
        return self.passes[self.split]

    @property
    def measuring(self) -> MetricGroup | None:
        """The metrics that measure the step that runs now, or None: the step does not count."""
        if self.visit is not None:
            return self.visit.metrics
        return None if self.quiet else self.current.metrics

    @property
    def position(self) -> Position:
        here = self.passes.get(self.split)
        total = None if here is None else here.cursor.total
        return Position(self.epoch, self.split, self.done, self.iteration, total)

    @property
    def place(self) -> Place:
        """The position in the form that ranks send to each other."""
        return Place(self.epoch, self.split, self.done)

    @property
    def iteration(self) -> int:
        """Finished training steps of the whole run."""
        return self.trained + (self.done if self.split == "train" else 0)

    @property
    def unread(self) -> int:
        """Finished steps whose values still wait on the device."""
        return self.done - self._read

    @property
    def finished(self) -> bool:
        return self.ended or self.epoch > self.num_epochs

    # The verb ----------------------------------------------------------------------------------------

    def run(self, until: Until) -> Why:
        """Train until the bound, a request or the end, and return which of these it was."""
        __tracebackhide__ = True
        while True:
            position = self.position
            if self.noted is not None:
                self.noted.reached(position)
            if self.boundary is not None:
                self.boundary.reached(position)
            if request := self.control.take_interrupt() if self.passing else self.control.take():
                return request
            if self.watch is not None and self.watch.late is not None:
                return "breakpoint"
            if self.finished:
                return "finished"
            allowed = until.allowance(position)
            if allowed <= 0:
                return "budget"
            if self.watch is not None:
                allowed = min(allowed, self.watch.allowance(position))
            if not self._open:
                self._open_split()
            steps, ended = self._block(self._budget(allowed, position))
            until.took(steps)
            if ended:
                self._close_split()

    def _budget(self, allowed: int, position: Position) -> int:
        for each in (self.boundary, self.noted):
            if each is not None:
                allowed = min(allowed, each.allowance(position))
        return min(allowed, self.pace.steps)

    def _block(self, budget: int) -> tuple[int, bool]:
        """Take up to `budget` steps, then send their metric values."""
        __tracebackhide__ = True
        before = self.done
        started = perf_counter()
        with ambient_kept_on_error(self.current.step.device.type):
            self.control.interruptible = self.breakable
            try:
                if self.ranks is not None:
                    self.ranks.steps(self.place, budget)
                ended = self._steps(budget)
            finally:
                self.control.interruptible = False
        taken = self.done - before
        seconds = perf_counter() - started
        self.pace.took(taken, seconds)
        self.flush(seconds, self.watch)
        return taken, ended

    def _steps(self, budget: int, hands: Hands | None = None) -> bool:
        """Take the steps (the hot path); True when the split has no further batch."""
        __tracebackhide__ = True
        fetch, step, collect, control = hands or self._hands()
        total = self.current.cursor.total
        for _ in range(budget):
            batch = fetch()
            if batch is END:
                return True
            self.batch = batch
            self.output = None  # free the last output before the next step's peak memory
            output = step(batch, self.done + 1 == total)
            collect(output)
            self.output = output
            self.done += 1
            if control.wanted:
                break
        return False

    def _hands(self) -> Hands:
        current = self.current
        if self.ranks is None:
            hands = Hands(current.cursor.fetch, current.step, current.metrics.collect, self.control)
        else:
            hands = self.ranks.hands(current.step, current.cursor, current.metrics)
        return hands._replace(fetch=self.pace.counting(hands.fetch)) if self.counts_waits else hands

    # Splits and epochs -------------------------------------------------------------------------------

    def _open_split(self) -> None:
        current = self.current
        if self.done == 0:
            current.cursor.begin(self.epoch)
            current.metrics.reset()
            self.emit(SplitStarted(self.epoch, self.split, current.cursor.total, self.num_epochs))
        self.modes.enter(self.split)
        if self.ranks is not None:
            self.ranks.open(self.place, current.cursor)
        self._open = True

    def _close_split(self) -> None:
        if self.done == 0:
            raise DataError(_why_nothing(self.split, self.epoch, self.current.cursor))
        if self.closing is not None:
            self.closing(self.split)
        finals = self.current.metrics.finals()
        if self.ranks is not None:
            self.ranks.close(finals)
        self.finish_split(finals)
        if self.ranks is not None:
            self.ranks.closed()

    def finish_split(self, finals: Mapping[str, float]) -> None:
        """Leave the split, with these final values of its epoch."""
        if self.split == "train" and self.update.count:
            self.update.apply()  # the last window may be shorter, and counts as a smaller batch
        self.finals.update({(self.split, name): value for name, value in finals.items()})
        self.current.cursor.drop()
        self.emit(SplitEnded(self.epoch, self.split, self.done, dict(finals)))
        for name, content in self.current.metrics.sheets().items():
            self.emit(Sheet(name, self.split, self.epoch, self.split, self.done, content))
        if self.split == "valid":
            self.act("validated")
        if self.split == "train" and "valid" in self.passes:
            self._go_to("valid", self.epoch)
        else:
            self._end_epoch()

    def act(self, when: After) -> None:
        """Call the user's functions for this place."""
        __tracebackhide__ = True
        self.acting = when
        try:
            for function in self.acts.get(when, ()):
                function()
        finally:
            self.acting = None

    def _end_epoch(self) -> None:
        epoch = self.epoch
        self.schedule.after_epoch(self.finals)
        self.ended = any([policy.after_epoch(epoch, self.finals) for policy in self.policies])
        self.act("epoch")
        self._go_to("train", epoch + 1)
        self.emit(EpochEnded(epoch, self.num_epochs))

    def _go_to(self, split: Split, epoch: int) -> None:
        self.trained = self.iteration
        self.split, self.epoch, self.done, self._read = split, epoch, 0, 0
        self._open = False

    def flush(self, seconds: float = 0.0, watch: Watcher | None = None) -> None:
        """Read the block's values from the device and send them, unless the watch ends the run here."""
        first, self._read = self._read + 1, self.done
        count = self.done - first + 1
        if not count:
            return
        others = () if self.ranks is None else self.ranks.gather(count)
        columns, texts = self.current.metrics.read(others, () if watch is None else watch.unread())
        block = MetricBlock(self.epoch, self.split, first, count, self.iteration, columns, texts, seconds)
        if watch is not None:
            watch.judge(block)
        self.emit(block)

    def skip_validation(self) -> None:
        """End a validation early, when the user will come back to it."""
        self.current.cursor.drop()
        self._go_to("train", self.epoch + 1)

    # Between runs ------------------------------------------------------------------------------------

    def train_more(self, epochs: int) -> None:
        """Set the last epoch so that this many more epochs are completed, including the running one."""
        self.num_epochs = self.epoch - 1 + epochs
        if self.ended:
            self.ended = False
            for policy in self.policies:
                policy.again()

    def look_around(self) -> None:
        """Before a run: read what the user may have changed while the loop stood still."""
        if self.split in self.passes:  # a set may be evaluated before there is training data
            self.current.cursor.drop_if_broken(self.done)
        self._open = False
        for each in self.passes.values():
            each.step.look_again()

    def rest(self) -> None:
        """After a run: note what the next one needs."""
        self.modes.remember()
        if self.before is not None:
            self.before.remember(self.iteration)

    # State -------------------------------------------------------------------------------------------

    def capture(self) -> dict[str, Any]:
        """The position and the values of ended splits; all else is in other parts of the state."""
        return {
            "epoch": self.epoch,
            "split": self.split,
            "done": self.done,
            "trained": self.trained,
            "ended": self.ended,
            "finals": [[split, name, value] for (split, name), value in self.finals.items()],
            "frozen": self.modes.capture(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.epoch, self.split, self.done = state["epoch"], state["split"], state["done"]
        self._read = self.done
        self.trained, self.ended = state["trained"], state["ended"]
        self.finals = {(split, name): value for split, name, value in state["finals"]}
        if "frozen" in state:  # an earlier version has not kept it
            self.modes.restore(state["frozen"])
        self.output = None
        self._open = False


def shown_position(loop: Loop, record: Record) -> Position:
    """The position that users see: at the very end it is after the last step, not at the first step of an
    epoch that will not come."""
    if not loop.finished or loop.epoch == 1:
        return loop.position
    # After loading a checkpoint the end is known before the loaders are.
    validated = "valid" in loop.passes or (bool(record) and record[-1].split == "valid")
    split: Split = "valid" if validated else "train"
    steps = record[-1].steps if record and record[-1].split == split else 0
    return Position(loop.epoch - 1, split, steps, loop.iteration, steps or None)


class LoopContext:
    """Gives metrics the values of the current step."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    @property
    def batch(self) -> Any:
        return self._loop.batch

    @property
    def samples(self) -> int:
        return count_samples(self._loop.batch)

    @property
    def learning_rates(self) -> list[float]:
        return self._loop.update.rates

    @property
    def grad_norm(self) -> Tensor | None:
        update = self._loop.update
        return update.norm if update.count == 0 and self._loop.split == "train" else None

    def rates_of(self, optimizer: str) -> list[float]:
        return self._loop.update.rates_of(optimizer)

    def norm_of(self, optimizer: str) -> Tensor | None:
        return self._loop.update.norms.get(optimizer) if self.grad_norm is not None else None

    @property
    def steps_per_second(self) -> float:
        return self._loop.pace.rate

    @property
    def data_wait(self) -> float:
        return self._loop.pace.data_wait

    @property
    def output(self) -> Any:
        return self._loop.output


def _why_nothing(split: Split, epoch: int, cursor: Cursor) -> str:
    kind = a_kind(cursor.loader)
    if epoch > 1 and not cursor.walks_again:
        return (
            f"the {split} loader, {kind}, yielded nothing in epoch {epoch}: it can be walked only once; "
            "give a list, a DataLoader, or an object whose __iter__ starts anew"
        )
    return (
        f"the {split} loader, {kind}, yielded no batch; look at the dataset's length, the batch size and "
        "drop_last=True (it drops the only batch of a small dataset)"
    )
