"""The base of all verbs of a Learner: its parts, and the one way into the loop, from any thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

from torch.optim import Optimizer

from ..data.cursor import Cursor
from ..errors import CheckpointError, LoggerError, MovedError, Paused, StateError
from ..evaluation.prediction import Forward
from ..event import Display, Event, Marked, MetricAdded, MetricInfo, Notice, RunOpened, Split, StatusChanged
from ..event.position import Position
from ..logger import History
from ..logger.branches import BranchLogger
from ..metric.base import AnyMetric
from ..recipe.run_recipe import RunRecipe
from ..run.bounds import Sooner, Until
from ..run.breakpoint_watch import Hit
from ..run.driver import Driver
from ..run.early_stopping import EarlyStopping, why_ended
from ..run.loop import Why
from ..run.replica import Replica
from ..state.standing_values import StandingValues
from ..state.state import State
from ..step.options import dials
from ..step.schedule import Schedule
from ..step.step import StepFunction, ValidationStep
from ..step.update import Update
from ..store import process_end
from .finalizer import Parting

if TYPE_CHECKING:
    from ..evaluation.chosen_samples import ChosenSamples
    from ..event import Status  # Jedi, which completes `learner.`, fails on a property that is a Literal


class Premises(Protocol):
    """The learner's place in the run's directory."""

    def look_in(self) -> None:
        """Reserve the directory before a checkpoint is read: no other run begins there until `look_away`."""

    def look_away(self) -> None:
        """The checkpoint was read."""

    def stands(self, status: str) -> None:
        """Note the status of the training, for others who want the directory."""

    def rest(self) -> None:
        """Training is over: others may go on in the directory, until this learner needs it again."""

    def wake(self) -> None:
        """Take the directory again, if it is still free, before an event is written."""

    def leave(self) -> None:
        """Leave the directory: the learner was garbage-collected."""

    @property
    def away(self) -> str:
        """Who else goes on with the run; empty if this learner has it."""

    def require_mine(self) -> None:
        """Raise if this learner may not go on: another process does, or the directory belongs to another
        run."""

    def lend(self, why: str) -> int:
        """Lend the directory to another process and return the descriptor that it needs. `why` is the error
        message for a verb that wants to train here meanwhile."""

    def lent(self) -> None:
        """The other process has the directory alone now."""

    def adopt(self, descriptor: int) -> None:
        """Take the directory with the descriptor that another process has lent."""

    def take_back(self, learner: Any, stand: Callable[[], Sequence[Event]], /) -> None:
        """Take the directory back from the other process. `stand` moves the learner to where the run stands,
        and returns the events that bring the writers of the directory there."""

    def enter(self, learner: Any, /, *, goes_on: bool, saves: bool) -> list[Notice]:
        """Take the directory before something is written there; return the notices for the user."""


Metrics = Iterable[AnyMetric] | None
Batches = Iterable[Any] | Callable[[], Iterable[Any]]
"""Batches: a loader, or a function that gives those of an epoch."""


@runtime_checkable
class OfOneLearner(Protocol):
    """A step that knows its learner, as a cell's does."""

    def of(self, learner: Any, /) -> StepFunction:
        """The same step for another one."""


class Supplies(Protocol):
    """What a learner is given to work with: data, and the steps that work on it."""

    def use(self, learner: Any, split: Split, given: Any, /) -> None:
        """Train or validate on this from here on."""

    def use_step(self, split: Split, function: StepFunction, /) -> None:
        """Train or validate with this from here on."""

    def use_loss(self, function: Callable[..., Any], /) -> None:
        """Train and validate with this loss from here on."""

    def make_optimizer(self, given: Any, /) -> Optimizer:
        """An optimizer, or several by name, for the model as it is now."""

    def make_schedule(self, given: Any, optimizer: Optimizer, /) -> Schedule:
        """A schedule for an optimizer."""

    def renew(self) -> None:
        """Look up the model's steps again, after its code has changed."""

    def step_of(self, split: Split, /) -> StepFunction | None:
        """The step of this split that the builder or `use_step` was given."""

    def fork(self, learner: Any, state: State, directory: str | os.PathLike[str], /) -> Any:
        """Make another learner like this one, in this state."""

    def given(self) -> Mapping[Split, Any]:
        """The data of each split, as it was given."""

    @property
    def origin(self) -> Any:
        """What the learner was built from."""

    @property
    def recipe(self) -> RunRecipe:
        """What made the run."""

    @property
    def branches(self) -> BranchLogger:
        """What keeps the lines that the run leaves."""

    def use_seed(self, seed: int | None, /) -> None:
        """Seed the run with this from the next epoch on, or from here on at the beginning of one."""

    def keep_seed(self, seed: int | None, /) -> None:
        """The seed of the checkpoint that the run goes on from holds, also for data that comes later."""

    @property
    def loss(self) -> Callable[..., Any] | None:
        """The loss function of `.loss(...)`, if there is one."""

    def require(self) -> None:
        """Raise if something is missing before training can begin."""

    def cursor_for(self, given: Any, what: str, /, way: Any = ...) -> Cursor:
        """A way through a loader or dataset, for one rank or several."""

    def validation_step(self, what: str, /) -> ValidationStep:
        """The step that measures."""

    def prediction_step(self, forward: Forward | None, /) -> ValidationStep:
        """A step that gives the model's output."""

    @property
    def samples(self) -> ChosenSamples | None:
        """The samples whose predictions are shown, if there are any."""

    def metrics_for(self, given: Metrics, what: str, /) -> list[AnyMetric]:
        """The given metrics, if there are any; by default those of the validation."""


T = TypeVar("T")
MarkKind = Literal["breakpoint", "edited", "forked"]

_STATUS: dict[Why, Status] = {
    "budget": "paused",
    "pause": "paused",
    "breakpoint": "paused",
    "stop": "stopped",
    "finished": "finished",
}
_LAST_STEP = 10.0
"""Seconds that the interpreter waits for a background step before it ends."""


class LearnerCore:
    """The parts of a Learner, and how its verbs run: a verb drives the loop, and only one verb drives at a
    time."""

    locals: dict[str, Any]
    """After a step of a `%%train` or `%%valid` cell: the values of the names in the cell's body. They are
    kept until the next step begins."""

    def __init__(
        self,
        replica: Replica,
        driver: Driver,
        opened: RunOpened,
        supplies: Supplies,
        premises: Premises,
        opening: Callable[[Any], str] = lambda learner: "",
    ) -> None:
        self._replica = replica
        self._driver = driver
        self._opened = opened
        self._supplies = supplies
        self._premises = premises
        self._announced = False
        self._untold: list[Notice] = []
        self._opening = opening
        self._display: Display | None = None
        self._status: Status = "ready"
        self.locals = {}
        self._stood: StandingValues | None = None
        """What the last run, error, change or jump left; None before the first one, and while steps are
        taken."""
        self._parting = Parting(partial(_let_go, driver, replica, premises))

    @property
    def status(self) -> Status:
        """ready, running, paused, failed, stopped or finished."""
        self._driver.require_own()
        return self._status

    @property
    def position(self) -> Position:
        """Where training stands, between two steps."""
        return self._replica.shown_position

    @property
    def history(self) -> History:
        """What was measured, step by step and epoch by epoch."""
        return self._replica.history

    # A verb, while no other thread drives -------------------------------------------------------------

    def _drive(self, work: Callable[[], T]) -> T:
        __tracebackhide__ = True
        with self._blocking():
            value, interrupted = self._driver.here(partial(self._resting, work))
        if interrupted:  # the interrupt came when the work was almost done
            raise Paused(str(self.position))
        return value

    def _leaving_locals(self, work: Callable[[], T]) -> T:
        """Do the work; a step that it only tries does not change the locals that the last real step left."""
        __tracebackhide__ = True
        values = self.locals
        try:
            return self._drive(work)
        finally:
            self.locals = values

    def _blocking(self) -> AbstractContextManager[Callable[[], None]]:
        """A context for the time that a verb blocks this thread."""
        __tracebackhide__ = True
        self._driver.require_own()
        return nullcontext(_nothing) if self._display is None else self._display.blocking()

    def _enter(self, *, goes_on: bool = False, saves: bool = False) -> None:
        """Take the directory before anything is written. A run that lies there is moved first, unless this
        one goes on with it. Raise if the directory belongs to another learner by now."""
        __tracebackhide__ = True
        self._untold += self._premises.enter(self, goes_on=goes_on, saves=saves)

    def _resting(self, work: Callable[[], T]) -> T:
        """Do the work; if training is over then, others may go on in the directory."""
        __tracebackhide__ = True
        try:
            return work()
        finally:
            self._rest()

    def _rest(self) -> None:
        if self._status in ("finished", "stopped"):
            self._premises.rest()

    # What happens in it -------------------------------------------------------------------------------

    def _begin(self) -> None:
        __tracebackhide__ = True
        self._enter()
        self._tell_of_data()
        if (before := self._replica.loop.before) is not None:
            self._untold += before.told(self._replica.loop.iteration)
        try:
            self._announce()
            self._look_for_changes()
            if not self._replica.loop.finished:
                self._set_status("running")
        except BaseException as error:
            self._fail(error)
            raise

    def _look_for_changes(self) -> None:
        """Note what the user has changed since the run stands: options, weights, the optimizer's state."""
        if self._stood is not None:
            now = self._standing()
            if told := self._stood.said_changes(now):
                self._supplies.recipe.touched = self._stood.changed(now)
                self._edited(", ".join(told))

    def _standing(self) -> StandingValues:
        replica, update = self._replica, self._replica.loop.update
        in_parts = replica.ranks is not None and replica.ranks.in_parts
        return StandingValues.of(update.model, update.optimizer, tensors=not in_parts)

    def _tell_of_data(self) -> None:
        """Compare data that came after a checkpoint with what that was trained on."""

    def _take(self, until: Until) -> Why:
        __tracebackhide__ = True
        self._stood = None
        try:
            why = self._run(until)
        except BaseException as error:
            self._fail(error)
            raise
        self._stood = self._standing()
        if why == "finished":
            self._return_to_the_best()
        if why == "breakpoint":
            self._tell_hit()
        elif self._status != _STATUS[why]:
            self._set_status(_STATUS[why], self._why_over() if why == "finished" else process_end.why())
        if why != "budget":  # between two steps by hand the user does not wait for the disk
            self._replica.keep_stop()
            self._replica.saving.wait()
        if why == "finished":
            self._replica.saving.close()
        return why

    def _run(self, until: Until) -> Why:
        """Train up to the bound. If samples are shown, each epoch is a run of its own, since they are looked
        at while the training stands still."""
        __tracebackhide__ = True
        if self._supplies.samples is None:
            return self._replica.run(until)
        while True:
            end = Position(self._replica.loop.epoch + 1, "train", 0)
            why = self._replica.run(Sooner(until, end))
            over = self._replica.loop.position >= end
            if over or why != "budget":  # not after a step by hand
                self._show_samples()
            if why != "budget" or not over:
                return why

    def _show_samples(self) -> None:
        """Show what the model says of the chosen samples."""

    def _return_to_the_best(self) -> None:
        """Training has ended by a rule that goes back to its best epoch."""
        loop = self._replica.loop
        last = loop.epoch - 1
        for rule in loop.policies:
            if isinstance(rule, EarlyStopping) and rule.returns and rule.stopped and rule.best_epoch < last:
                best, value = rule.best_epoch, rule.best
                try:
                    self._replica.rewind(Position(best + 1, "train", 0))
                except StateError as no_way:
                    self._emit(Notice(f"not back at epoch {best}, the best: {no_way}", "warning"))
                    return
                loop.ended = True
                self._emit(
                    Notice(
                        f"back at the end of epoch {best}, the best by {rule.split} {rule.metric} {value:g}; "
                        f"learner.branches has what came behind it, up to epoch {last}"
                    )
                )
                return

    def _announce(self) -> None:
        if not self._announced:
            self._announced = True
            self._replica.sinks.open(replace(self._opened, num_epochs=self._replica.loop.num_epochs))
            if told := self._opening(self):
                self._untold.append(Notice(told, "warning"))
        while self._untold:
            self._emit(self._untold.pop(0))

    def _fail(self, error: BaseException) -> None:
        with suppress(Exception):  # a failed device may give nothing
            self._stood = self._standing()
        with suppress(LoggerError):  # the logger keeps the line; the other error says more
            paused = isinstance(error, (KeyboardInterrupt, MovedError))
            self._set_status("paused" if paused else "failed", _reason(error))
        if isinstance(error, (LoggerError, CheckpointError)):
            return  # the user has to repair the disk first
        with suppress(Exception):  # the state is in memory; a failed device may not give it
            self._replica.keep_stop()

    def _set_status(self, status: Status, reason: str = "") -> None:
        self._status, at = status, self.position
        self._premises.stands(status)
        self._emit(StatusChanged(status, at.epoch, at.split, at.step, at.total, reason))

    def _emit(self, event: Event) -> None:
        """Hand on an event between runs. A failing logger is reported at once: otherwise the loop would fail
        the next run for it, when its cause may be gone."""
        self._premises.wake()
        self._replica.sinks.emit(event)

    def _settle(self) -> None:
        """Set the status after a jump, and report metrics that only the restored state has logged."""
        self._tell_logged()
        self._stood = self._standing()
        loop = self._replica.loop
        if loop.output is None:  # no step was replayed: the old values are of a step that is gone
            self.locals = {}
        start = loop.position.key == Position().key
        self._set_status("finished" if loop.finished else "ready" if start else "paused")

    # What it reports ----------------------------------------------------------------------------------

    @property
    def hit(self) -> Hit | None:
        """The breakpoint that stopped the learner here, with what it found, or None."""
        stands = self._replica.watch.stood == self._replica.loop.position.key
        return self._replica.hit if stands else None

    def _tell_hit(self) -> None:
        hit = self._replica.hit
        assert hit is not None
        self._mark("breakpoint", str(hit))
        self._set_status("paused", str(hit))

    def _use_step(self, split: Split, function: StepFunction, note: str) -> None:
        """Take this step from here on, at a boundary."""
        self._supplies.use_step(split, function)
        self._edited(note)

    def _edited(self, text: str) -> None:
        """The user changed the run: it needs a keyframe from here on, and the history tells where."""
        self._replica.shape.look(tell=False)
        self._stood = None if self._replica.rng.running else self._standing()
        if self._replica.loop.iteration:
            self._stand_anew()
            self._mark("edited", text)
            if self._announced and not self._supplies.recipe.repeats_last:
                self._replica.saving.keep_change(self._replica.capture())

    def _stand_anew(self) -> None:
        """The user changed the run at this boundary. If another thread is in it, it asks for a keyframe too
        late."""
        self._replica.timeline.wanted = True
        if self._replica.rng.running and not self._replica.loop.passing and not self._driver.inside:
            self._replica.stand_anew()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Inside, something is set at a boundary; also by a function that reshapes the training there."""
        if self._replica.shape.changing:
            yield
            return
        with self._driver.held():
            self._premises.require_mine()
            self._replica.settle()
            yield

    def _mark(self, kind: MarkKind, text: str) -> None:
        if self._replica.loop.passing:
            return
        at = self._replica.loop.position
        self._emit(Marked(kind, at.epoch, at.split, at.step, text))

    def _tell_logged(self) -> None:
        """Report the logged metrics to all displays."""
        known = {(info.name, info.split) for info in self._opened.metrics}
        for split, each in self._replica.loop.passes.items():
            for name in each.metrics.logged:
                if (name, split) not in known:
                    info = MetricInfo(name, split)
                    self._opened = replace(self._opened, metrics=(*self._opened.metrics, info))
                    self._emit(MetricAdded(info))

    def _why_over(self) -> str:
        loop = self._replica.loop
        return why_ended(loop.policies, loop.finals) if loop.ended else ""

    # Its devices --------------------------------------------------------------------------------------

    def _at_hand(self) -> Update:
        """Model and optimizer for the user to look at: the whole weights, if the run stands between two
        steps."""
        ranks = self._replica.ranks
        if ranks is not None and self._driver.inside:
            ranks.look()
        return self._replica.loop.update

    def _ranks(self) -> Any:
        """The other processes as a panel shows them, without waiting for any of them."""
        ranks = self._replica.ranks
        return () if ranks is None else ranks.seen()

    def _dials(self) -> list[dict[str, Any]]:
        """The rate, momentum and weight decay of each group; none that lies on a device while it trains."""
        return dials(self._replica.loop.update.optimizer, self._status != "running")

    def _device_memory(self) -> int | None:
        """The bytes that this process holds on its device; None on a CPU."""
        import torch

        held = next(iter(self._replica.loop.passes.values()), None)
        on_gpu = held is not None and held.step.device.type == "cuda"
        return int(torch.cuda.memory_allocated(held.step.device)) if held and on_gpu else None

    def _on_rank(self, rank: int) -> Any:
        """The object that asks another rank."""
        ranks = self._replica.ranks
        world = 1 if ranks is None else ranks.world
        if not isinstance(rank, int) or not 0 < rank < world:
            known = "there is one device, rank 0" if ranks is None else f"the last one is {world - 1}"
            raise StateError(f"there is no rank {rank!r:.60}; {known}")
        return ranks


def _let_go(driver: Driver, replica: Replica, premises: Premises) -> None:
    """Stop the learner when it is garbage-collected, or when the interpreter ends during background
    training."""
    if driver.leave(_LAST_STEP):
        try:
            with suppress(MovedError):  # the user has seen it
                replica.let_go()
        finally:
            premises.leave()


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _nothing() -> None:
    pass
