"""The Learner, the object that users work with. Every verb is one call on the replica, through the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn

from ..artifacts import Artifacts
from ..errors import BusyError, Paused, StateError, a_kind
from ..event import Notice, Split
from ..event.position import Position, after_training_step, steps_back
from ..run.bounds import At, End, EpochDone, Steps, Until, WhenTrue, as_condition, as_position, counted
from ..run.loop import Why
from ..run.step_reports import RewindReport, StepReport, ahead, nothing_left
from ..run.unheard import heard
from ..state.state import State
from ..step.optimizers import as_given
from ..step.schedule import scheduler_of
from ..store import process_end
from .assigning import Assigning
from .core import Batches
from .debugging import Debugging
from .display import Epochs
from .finalizer import lets_go

if TYPE_CHECKING:
    from ..carried.table import (
        CarriedTable,  # Jedi, which completes `learner.`, fails on a property that is a Literal
    )
from .directory import DirectoryVerbs
from .display import DisplayVerbs
from .set_verbs import SetVerbs
from .tools import Devices, Tools

T = TypeVar("T")


class Learner(Assigning, DirectoryVerbs, DisplayVerbs, Debugging, SetVerbs):
    """A model in training: run it, stop it after any step, look at it, go back, go on.

    Build one with `LearnerBuilder`. When training stops (a pause, an error, the end of a cell), the learner
    stands at the boundary between two steps. `fit()` goes on from there as if nothing had happened.

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
    ...     .metric_logger(InMemoryMetricLogger())  # no log files for an example
    ...     .with_application_logger(False)
    ...     .build(model, torch.optim.SGD(model.parameters(), lr=0.1), None, batches, batches[:1])
    ... )
    >>> learner.step(3)  # doctest: +ELLIPSIS
    3 steps taken, now at epoch 1, train, step 3 of 4; train: Loss ... (last step)
    >>> learner.rewind(2)
    rewound to epoch 1, train, step 1 of 4 (1 step replayed, exact)
    >>> learner.run_until((1, "valid", 0))  # doctest: +ELLIPSIS
    3 steps taken, now at epoch 1, valid, step 0 of 1; train: Loss ...
    >>> learner.fit() is model
    True
    >>> learner
    Learner(finished, epoch 2, valid, step 1 of 1; Linear, 8 parameters, unused)
    """

    # Train -------------------------------------------------------------------------------------------

    @lets_go
    def fit(
        self,
        train: Batches | None = None,
        valid: Batches | None = None,
        *,
        epochs: int | None = None,
    ) -> nn.Module:
        """Train until the last epoch is over, and return the trained model.

        After a pause, an error or a stop, `fit()` goes on from that step. When training is finished,
        `fit(epochs=5)` trains five more epochs, and `fit()` returns the model at once.

        Args:
            train: the training loader, any iterable of batches; or a function without arguments that gives an
                epoch's batches, such as a generator function; or several loaders by name, which give a dict
                of batches, and of which the shorter ones begin again; or a data module that was written for
                Lightning, with the validation's. By default the one in use.
            valid: the validation loader, likewise.
            epochs: train this number of epochs from here, including the running one, instead of up to
                `num_epochs`.

        Raises:
            Paused: the user pressed Pause, the interrupt button or Ctrl-C.
        """
        __tracebackhide__ = True  # tracebacks show the user's code; IPython leaves these frames out
        self._show()
        paused = self._paused(self._drive(partial(self._fit, train, valid, epochs)))
        if paused is None:
            return self.model
        raise paused

    def start(
        self,
        train: Batches | None = None,
        valid: Batches | None = None,
        *,
        epochs: int | None = None,
    ) -> None:
        """Train like `fit`, but in the background: the call returns at once. `wait()` gives the result.

        In a notebook, the output of the training stays below the cell that started it.
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
        """Wait for the training in the background; return or raise what `fit` would.

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
        """Pause at the next step boundary, from any thread. The call returns when the learner stands there.

        If a step or a metric calls it, it returns at once, and the learner pauses after that step.
        """
        self._ask("pause")

    def resume(self) -> None:
        """Go on after a pause, in the background."""
        self.start()

    def stop(self) -> None:
        """End the running `fit` at the next step boundary; `fit` then returns the model as it is.

        A later `fit()` can go on from there.
        """
        if self._ask("stop"):
            return
        with self._driver.held():
            if self._status in ("paused", "failed"):
                self._set_status("stopped")
                self._rest()

    @contextmanager
    def paused(self) -> Iterator[Learner]:
        """Hold the training for a moment: inside the `with`, other threads and cells see one consistent
        state.

        A running training waits at its next step boundary and goes on afterwards. A training that is started
        meanwhile waits, too.

        `with learner.paused(): torch.save(learner.model.state_dict(), "now.pt")` saves one step's weights.
        """
        with self._driver.held():
            self._replica.settle()
            self._replica.whole()
            before = self._replica.shape.look()
            yield self
            if self._replica.shape.look() is not before:
                self._stand_anew()

    # Step --------------------------------------------------------------------------------------------

    @lets_go
    def step(self, n: int = 1) -> StepReport:
        """Take the next n steps, of training or of validation."""
        __tracebackhide__ = True
        count = counted("step", n, "rewind(n) goes back")
        return self._move(lambda: Steps(count))

    @lets_go
    def step_epoch(self) -> StepReport:
        """Take steps up to the end of the current epoch."""
        __tracebackhide__ = True
        return self._move(lambda: EpochDone(self._replica.loop.position))

    @lets_go
    def run_until(self, target: Callable[[Learner], bool] | Position | tuple[Any, ...]) -> StepReport:
        """Take steps until a condition holds after a step, or up to a position.

        A condition is called with the learner: `learner.run_until(lambda l: l.output.loss < 0.1)`. A position
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
    def rewind(
        self,
        n: int = 1,
        *,
        to: Position | tuple[Any, ...] | int | None = None,
        of: Split | None = None,
        replay_output: bool = False,
    ) -> RewindReport:
        """Take back n steps, or all steps after a position. The same steps then give the same bits again.

        `learner.rewind(3)`, `learner.rewind(to=(1, 5))`, `learner.rewind(to=(1, "valid", 0))`; and by the
        number of the run's training steps, `learner.rewind(to=1200)`. The learner goes back to an earlier
        state and replays the steps from there. During the replay nothing that your code prints, displays or
        draws is shown, and no debugger opens.

        Args:
            n: how many steps. Those of a validation count, too.
            to: a position, in place of a number of steps.
            of: "train" counts only training steps, so the next step is one of training.
            replay_output: show the output of your code during the replay, and let `breakpoint()` stop.
        """
        count = counted("rewind", n, "step(n) goes forward, rewind(to=(epoch, step)) goes to a place")
        target: Position | int | None = None
        if to is not None:
            target = int(to) if type(to) is int else as_position(to)
        if of not in (None, "train", "valid"):
            raise ValueError(f"rewind(of={of!r}): give 'train' or 'valid', or leave it out to count both")
        if of is not None and to is not None:
            raise ValueError(f"rewind(to=..., of={of!r}): `of` says which steps n counts; leave one out")
        with heard(replay_output):
            return self._drive(lambda: self._rewind(count, target, of))

    # State -------------------------------------------------------------------------------------------

    def capture(self) -> State:
        """Copy everything that a step can change, for a later `restore`: the weights, the optimizer, random
        generators, the place in the data, partial metrics, and more."""
        self._driver.require_own()
        if not self._driver.still:
            raise BusyError(
                "capture() needs a learner that stands still; call learner.pause() first, or capture inside "
                "`with learner.paused()`"
            )
        with self._driver.held():
            return self._replica.capture()

    def restore(self, state: State | int | str) -> None:
        """Go to the step of a captured state or of a checkpoint; history and logs follow.

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
        """Save a checkpoint of this step, and return its label for `restore` and `.checkpoint`.

        The file stays until you delete it. A training in the background is held for a moment.

        Args:
            wait: return when the file is on the disk. With False it is written in the background, and the
                next verb that trains, waits or saves raises the error, if there is one.

        Raises:
            CheckpointError: the file could not be written; training is unchanged.
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
        """The files in the run's directory, read-only. They can be read after this process has ended, too."""
        self._driver.require_own()
        self._replica.saving.close()
        return Artifacts(self._opened.directory)

    @property
    def num_epochs(self) -> int:
        """The number of the last epoch. Set it, also during training, to train more epochs or fewer."""
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
        """The model in training, not a copy."""
        return self._at_hand().model

    @property
    def optimizer(self) -> Any:
        """The optimizer in use; if there are several, all by name."""
        return as_given(self._at_hand().optimizer)

    @property
    def scheduler(self) -> Any:
        """The schedule in use: torch's scheduler, a function, a rate or None; of several, all by name."""
        return scheduler_of(self._replica.loop.update.schedule)

    @property
    def carried(self) -> CarriedTable:
        """What steps reach outside of model, optimizer and loaders (counters, queues, generators, other
        networks), how it is kept in the state, and what of it cannot be kept."""
        with self._driver.held():
            table: CarriedTable = self._replica.carried.table()
            return table

    @property
    def batch(self) -> Any:
        """The last batch, as the loader gave it; after an error, the batch that failed."""
        return self._replica.loop.batch

    @property
    def output(self) -> Any:
        """What the last step returned."""
        return self._replica.loop.output

    # Rare --------------------------------------------------------------------------------------------

    @property
    def devices(self) -> Devices:
        """The processes that train, shown as a table; `learner.devices.restart()` starts them again."""
        return Devices(self)

    @property
    def tools(self) -> Tools:
        """Verbs that you need now and then: `lr_find`, `reload_code`, `try_step`, `use_step`, `note`,
        `freeze`."""
        return Tools(self)

    def __repr__(self) -> str:
        opened = self._opened
        stands = self._status if self._driver.own else f"belongs to process {self._driver.process}"
        return (
            f"Learner({stands}, {self.position}; {opened.model}, {opened.parameters:,} parameters, "
            f"{opened.directory})"
        )

    # Verbs, while no other thread drives -------------------------------------------------------------

    def _prepare(self, train: Any, valid: Any, epochs: int | None) -> None:
        """Take the arguments of `fit`, and begin. `start` returns after that: then the status is "running",
        and an error that prevents the training was raised in the cell that started it."""
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
        """Take steps up to a bound, which is made when no other thread can move the learner."""
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
        """The training and validation steps that count: not those taken back, and not those replayed."""
        return sum(part.steps for part in self.history.snapshot())

    def _rewind(self, n: int, target: Position | int | None, of: Split | None) -> RewindReport:
        if self._announced:  # else there is nothing to go back from
            self._enter()
        here, record = self._replica.loop.position, self.history.snapshot()
        if target is None:
            target = steps_back(record, n, of)
        elif isinstance(target, int):
            target = after_training_step(record, target)
        if target > here:
            raise ValueError(ahead(target, self.position, self.num_epochs, self._replica.loop.finished))
        report = self._replica.rewind(target)
        self._settle()
        reached = report.position
        only_validation = reached.split == "valid" and 0 < reached.iteration == here.iteration
        return replace(report, only_validation=only_validation and reached < here)

    def _restore(self, state: State) -> None:
        self._enter()
        self._announce()
        self._replica.restore(state)
        self._settle()

    # The one way into the loop, from any thread ------------------------------------------------------

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
        """The `Paused` that a blocking verb raises if it did not come to its end."""
        stopped = why in ("pause", "breakpoint")
        return Paused(str(self.position), str(self.hit or "")) if stopped else None
