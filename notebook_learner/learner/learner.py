"""The Learner: what users hold. Every verb is one call on the replica, through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from torch.optim import Optimizer

from ..artifacts import Artifacts
from ..errors import BusyError, Paused, StateError, a_kind
from ..event import Notice, Split
from ..event.position import Position
from ..event.recorded_positions import after_training_step, steps_back
from ..run.bounds import At, End, EpochDone, Steps, Until, WhenTrue, as_condition, as_position, counted
from ..run.loop import Why
from ..run.step_reports import RewindReport, StepReport, ahead, nothing_left
from ..state.state import State
from ..store import process_end
from .debugging import Debugging
from .display import Epochs
from .finalizer import lets_go

if TYPE_CHECKING:
    pass  # Jedi, which completes `learner.`, fails on a property that is a Literal
from .detach_verbs import DetachVerbs
from .devices import Devices
from .directory import DirectoryVerbs
from .display import DisplayVerbs
from .set_verbs import SetVerbs
from .tools import Tools

T = TypeVar("T")


class Learner(DetachVerbs, DirectoryVerbs, DisplayVerbs, Debugging, SetVerbs):
    """A model in training: run it, stop it anywhere, look at it, go back, go on.

    Build one with `LearnerBuilder`. Whatever stops training (a pause, an error, the end of a cell),
    it stands at the boundary between two steps, and `fit()` goes on from there as if nothing had
    happened.

    >>> import torch
    >>> from torch.nn import functional as F
    >>> from notebook_learner import LearnerBuilder
    >>> from notebook_learner.logger import InMemoryMetricLogger
    >>> batches = [(torch.ones(2, 3), torch.tensor([0, 1]))] * 4
    >>> model = torch.nn.Linear(3, 2)
    >>> learner = (
    ...     LearnerBuilder("unused")
    ...     .loss(F.cross_entropy)
    ...     .num_epochs(2)
    ...     .renderer("silent")
    ...     .metrics()
    ...     .metric_logger(InMemoryMetricLogger())  # no log files for an example
    ...     .with_application_logger(False)
    ...     .build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches, batches[:1])
    ... )
    >>> learner.step(3)
    3 steps taken, now at epoch 1, train, step 3 of 4
    >>> learner.rewind(2)
    rewound to epoch 1, train, step 1 of 4 (1 step replayed, exact)
    >>> learner.run_until((1, "valid", 0))
    3 steps taken, now at epoch 1, valid, step 0 of 1
    >>> learner.fit() is model
    True
    >>> learner
    Learner(finished, epoch 2, valid, step 1 of 1; Linear, 8 parameters, unused)
    """

    # Train -------------------------------------------------------------------------------------------

    @lets_go
    def fit(
        self,
        train: Iterable[Any] | None = None,
        valid: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
    ) -> nn.Module:
        """Train until the last epoch is over; returns the trained model.

        After a pause, an error or a stop it goes on from that very step. After the end `fit(epochs=5)`
        trains five more epochs, and `fit()` returns the model at once.

        Args:
            train: the training loader, any iterable of batches; by default the one in use.
            valid: the validation loader, likewise.
            epochs: train so many epochs from here, the running one included, instead of up to
                `num_epochs`.

        Raises:
            Paused: when Pause, the interrupt button or Ctrl-C was used.
        """
        __tracebackhide__ = True  # tracebacks show the user's code; IPython leaves these frames out
        self._show()
        paused = self._paused(self._drive(partial(self._fit, train, valid, epochs)))
        if paused is None:
            return self.model
        raise paused

    def start(
        self,
        train: Iterable[Any] | None = None,
        valid: Iterable[Any] | None = None,
        *,
        epochs: int | None = None,
    ) -> None:
        """As `fit`, in the background: returns at once. `wait()` gives the result.

        In a notebook, what the training prints stays with the cell that started it.
        """
        if not self._driver.busy:
            self._show()
        __tracebackhide__ = True
        prepare, work = partial(self._prepare, train, valid, epochs), partial(self._resting, self._train_on)
        if self._driver.behind(prepare, work, self._fail):
            self.pause()
            raise Paused(str(self.position))

    @lets_go
    def wait(self) -> nn.Module:
        """Wait for background training; what `fit` would have returned or raised.

        Interrupting the wait pauses the training.
        """
        interrupted = False
        with self._blocking() as serve:
            try:
                result = self._driver.wait(serve)
            except KeyboardInterrupt:
                interrupted = True
                self.pause()
                result = self._driver.wait()
        why: Why | None = result()
        if interrupted or (why is None and self._status in ("paused", "failed")):
            why = "pause"
        paused = self._paused(why)
        if paused is None:
            return self.model
        raise paused

    def pause(self) -> None:
        """Pause at the next step boundary; returns once the learner stands there. From any thread.

        Called by a step or a metric it returns at once, and the pause comes after that step.
        """
        self._ask("pause")

    def resume(self) -> None:
        """Go on after a pause, in the background."""
        self.start()

    def stop(self) -> None:
        """End the running `fit` at the next step boundary: it returns the model as it is.

        `fit()` can go on from there all the same.
        """
        if self._ask("stop"):
            return
        with self._driver.held():
            if self._status in ("paused", "failed"):
                self._set_status("stopped")
                self._rest()

    @contextmanager
    def paused(self) -> Iterator[Learner]:
        """Stand still for a moment: inside, another thread or cell sees one consistent state.

        Training that runs waits at its next step boundary and goes on afterwards; training that is
        started meanwhile waits, too.

        `with learner.paused(): torch.save(learner.model.state_dict(), "now.pt")` saves one step's weights.
        """
        with self._driver.held():
            self._replica.settle()
            self._replica.whole()
            yield self

    # Step --------------------------------------------------------------------------------------------

    @lets_go
    def step(self, n: int = 1) -> StepReport:
        """Take n steps, of training or validation, whichever comes."""
        __tracebackhide__ = True
        count = counted("step", n, "rewind(n) goes back")
        return self._move(lambda: Steps(count))

    @lets_go
    def step_epoch(self) -> StepReport:
        """Go on to the end of the epoch that the learner stands in."""
        __tracebackhide__ = True
        return self._move(lambda: EpochDone(self._replica.loop.position))

    @lets_go
    def run_until(self, target: Callable[[Learner], bool] | Position | tuple[Any, ...]) -> StepReport:
        """Go on until a condition holds after a step, or to a position.

        A condition is given the learner: `learner.run_until(lambda l: l.output.loss < 0.1)`. A position
        is `(epoch, step)` or `(epoch, split, step)`: `learner.run_until((3, 117))`,
        `learner.run_until((3, "valid", 0))`.
        """
        __tracebackhide__ = True
        if callable(target):
            condition = as_condition(target)
            return self._move(lambda: WhenTrue(lambda: condition(self)))
        position = as_position(target)
        return self._move(lambda: At(position))

    @lets_go
    def rewind(self, n: int = 1, *, to: Position | tuple[Any, ...] | int | None = None) -> RewindReport:
        """Take back n steps, or all steps after a position. Stepping on gives the same bits again.

        `learner.rewind(3)`, `learner.rewind(to=(1, 5))`, `learner.rewind(to=(1, "valid", 0))`; and by the
        run's training steps, `learner.rewind(to=1200)`. Steps on the way are taken again; what your code
        prints then is not shown, and `breakpoint()` does not stop there.
        """
        count = counted("rewind", n, "step(n) goes forward, rewind(to=(epoch, step)) goes to a place")
        target: Position | int | None = None
        if to is not None:
            target = int(to) if type(to) is int else as_position(to)
        return self._drive(lambda: self._rewind(count, target))

    # State -------------------------------------------------------------------------------------------

    def capture(self) -> State:
        """Everything that a step can change, as a value to `restore` later: the weights, the
        optimizer, random generators, the place in the data, partial metrics, and more."""
        self._driver.require_own()
        if not self._driver.still:
            raise BusyError(
                "capture() needs a learner that stands still; call learner.pause() first, or capture inside "
                "`with learner.paused()`"
            )
        with self._driver.held():
            return self._replica.capture()

    def restore(self, state: State | int | str) -> None:
        """Stand exactly where a state was captured, or a checkpoint saved; history and logs follow.

        Args:
            state: what `capture()` gave; or a checkpoint: an epoch's number, a label such as "3-117",
                "latest" or "best".

        Raises:
            StateError: there is no such checkpoint, or it belongs to another model. Nothing has changed.
            DamagedError: it is damaged. Nothing has changed.
        """
        if isinstance(state, State):
            self._drive(lambda: self._restore(state))
        elif isinstance(state, (int, str)):
            self._drive(lambda: self._restore_checkpoint(state))
        else:
            raise StateError(
                f"restore() takes what capture() gave, or the epoch or label of a checkpoint, not "
                f"{a_kind(state)}"
            )

    def save(self, *, wait: bool = True) -> str:
        """Save a checkpoint of this very step; gives its label, for `restore` and `.checkpoint`.

        It stays until somebody deletes it. Training that runs in the background is held for a moment.

        Args:
            wait: return only when it is on the disk. Otherwise it is written in the background, and an
                error is raised by the next verb that trains, waits or saves.

        Raises:
            CheckpointError: it could not be written; training is as it was.
        """
        if not isinstance(wait, bool):
            raise TypeError(f"save(wait={wait!r}): give True or False")
        with self._driver.held(), process_end.awaited():
            self._enter(saves=True)
            self._announce()
            label = self._replica.keep("manual")
            if wait:
                self._replica.saving.wait()
            self._rest()
        return label

    @property
    def artifacts(self) -> Artifacts:
        """The run's directory as anybody sees it, also once this process is gone; read-only."""
        self._driver.require_own()
        self._replica.saving.close()
        return Artifacts(self._opened.directory)

    @property
    def num_epochs(self) -> int:
        """The last epoch's number. Set it, while training runs too, to train more epochs or fewer."""
        return Epochs(self._replica.loop.num_epochs)

    @num_epochs.setter
    def num_epochs(self, number: int) -> None:
        with self._driver.held():
            self._premises.require_mine()
            loop = self._replica.loop
            number = Epochs(number)
            if number < loop.epoch - (loop.done == 0):
                raise ValueError(f"num_epochs = {number}: the learner stands at {self.position} already")
            loop.train_more(number - loop.epoch + 1)
            if self._status == "finished" and not loop.finished:
                self._set_status("paused")
            self._rest()

    # Look at -----------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The model in training: the live one."""
        return self._at_hand().model

    @property
    def ema_model(self) -> nn.Module | None:
        """The moving average of the model, where `.ema(...)` asked for one."""
        average = self._replica.loop.update.average
        return None if average is None else average.module

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer in use."""
        return self._at_hand().optimizer

    @property
    def batch(self) -> Any:
        """The last batch, as the loader gave it; after an error, the one that failed."""
        return self._replica.loop.batch

    @property
    def output(self) -> Any:
        """What the last step returned."""
        return self._replica.loop.output

    # What is rare ------------------------------------------------------------------------------------

    @property
    def devices(self) -> Devices:
        """The processes that train, shown as a table; `learner.devices.restart()` starts them anew."""
        return Devices(self)

    @property
    def tools(self) -> Tools:
        """What is needed now and then: `lr_find`, `reload_code`, `try_step`, `use_step`, `note`, `freeze`."""
        return Tools(self)

    def __repr__(self) -> str:
        opened = self._opened
        stands = self._status if self._driver.own else f"belongs to process {self._driver.process}"
        return (
            f"Learner({stands}, {self.position}; {opened.model}, {opened.parameters:,} parameters, "
            f"{opened.directory})"
        )

    # Verbs, once nobody else drives ------------------------------------------------------------------

    def _prepare(self, train: Any, valid: Any, epochs: int | None) -> None:
        """Take what `fit` was given, and begin. `start` returns after that: whoever asks then is told that it
        runs, and what stood in the way was raised in the cell that wanted it."""
        __tracebackhide__ = True
        more = None if epochs is None else counted("fit", epochs, "train at least one epoch more", "epochs")
        data: tuple[tuple[Split, Any], ...] = (("train", train), ("valid", valid))
        for split, loader in data:
            if loader is not None:
                self._supplies.use(self, split, loader)
        self._supplies.require()
        self._enter()  # before anything is changed
        if more is not None:
            self._replica.loop.train_more(more)
        self._begin()

    def _move(self, until: Callable[[], Until]) -> StepReport:
        """Take the steps of a bound that is made when nobody else can move the learner any more."""
        __tracebackhide__ = True
        return self._drive(partial(self._moved, until))  # a lambda would be a frame that tracebacks show

    def _moved(self, until: Callable[[], Until]) -> StepReport:
        __tracebackhide__ = True
        self._supplies.require()
        loop = self._replica.loop
        split, before = loop.split, self._measured_steps()
        bound = until()
        self._begin()
        why = self._take(bound)
        if why == "pause":
            raise Paused(str(self.position))
        steps = self._measured_steps() - before
        measured = self._replica.history.last_values() if steps else None
        reason = str(self.hit or "")
        return StepReport(self.position, steps, *(measured or (split, {})), why=why, reason=reason)

    def _measured_steps(self) -> int:
        """Steps of training and validation that stand: none that was taken back, or again on the way."""
        return sum(part.steps for part in self.history.snapshot())

    def _rewind(self, n: int, target: Position | int | None) -> RewindReport:
        if self._announced:  # else there is nothing to go back from
            self._enter()
        here, record = self._replica.loop.position, self.history.snapshot()
        if target is None:
            target = steps_back(record, n)
        elif isinstance(target, int):
            target = after_training_step(record, target)
        if target > here:
            raise ValueError(ahead(target, self.position, self.num_epochs, self._replica.loop.finished))
        report = self._replica.rewind(target)
        self._settle()
        return report

    def _restore(self, state: State) -> None:
        self._enter()
        self._announce()
        self._replica.restore(state)
        self._settle()

    # The one way into the loop, from whichever thread --------------------------------------------------

    def _fit(self, train: Any, valid: Any, epochs: int | None) -> Why:
        __tracebackhide__ = True
        self._prepare(train, valid, epochs)
        return self._train_on()

    def _train_on(self) -> Why:
        __tracebackhide__ = True
        loop, over = self._replica.loop, self._replica.loop.finished
        why = self._take(End())
        if over:
            self._emit(Notice(nothing_left(loop.epoch, loop.num_epochs, loop.ended), answers=True))
        return why

    def _paused(self, why: Why | None) -> Paused | None:
        """What a blocking verb ends with, where it did not come to its end."""
        stopped = why in ("pause", "breakpoint")
        return Paused(str(self.position), str(self.hit or "")) if stopped else None
