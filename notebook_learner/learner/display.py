"""The part of a Learner that is on show: which display it has, and what that is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import names_descriptors
from ..event import Display, Event, Notice, Rewound, RunOpened, Sink, StatusChanged
from ..event.position import Position
from ..logger import History
from ..run.driver import Driver
from ..run.replica import Replica

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..checkpoint.info import CheckpointInfo
    from ..event import Status
    from ..renderer.summary import Summary


class Shown:
    """How a learner appears on a page. A class of its own only because a file has one subject."""

    _replica: Replica
    _driver: Driver
    _opened: RunOpened
    _status: Status
    _display: Display | None

    _builder_verbs: ClassVar[frozenset[str]] = frozenset()
    """The verbs of LearnerBuilder, which tells them to this class: an error explains that they are over."""

    if not TYPE_CHECKING:  # a type checker would take every misspelt verb for an attribute

        def __getattr__(self, name: str) -> Any:
            """Asked for what is not here: a verb of the builder, perhaps, which is over."""
            own = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in type(self)._builder_verbs:
                own += f"; {_why_built(name)}"
            raise AttributeError(own, name=name, obj=self)

    @property
    def position(self) -> Position:
        raise NotImplementedError

    @property
    def history(self) -> History:
        raise NotImplementedError

    @property
    def num_epochs(self) -> int:
        raise NotImplementedError

    def _emit(self, event: Event) -> None:
        raise NotImplementedError

    def _rest(self) -> None:
        raise NotImplementedError

    def shown_on(self, display: Display) -> None:
        """Let a display show this learner where it trains, and where it is a cell's last line."""
        with self._driver.held():
            self._display = display
            display.attach(self)
            self._replica.sinks.add(display)

    @names_descriptors
    def plot(self, metrics: str | Iterable[str] | None = None) -> Figure:
        """The curves so far, as a matplotlib figure: of one metric, of several, or of all."""
        from ..renderer.figure import plot

        return plot(self.history, metrics, infos=self._opened.metrics)

    @names_descriptors
    def summary(self) -> Summary:
        """Model, settings, and the best and worst epochs of every metric."""
        from ..renderer.summary import Summary, summary_rows

        opened, loop = self._opened, self._replica.loop
        settings = {**opened.settings, "epochs": f"{loop.epoch - 1} of {loop.num_epochs}"}
        rows = summary_rows(self.history, opened.metrics)
        return Summary(opened.model, opened.parameters, settings, rows)

    def show(self) -> None:
        """Show the panel below the cell that runs, where there is one. `fit` and `start` do so."""
        __tracebackhide__ = True
        self._driver.require_own()
        if self._display is not None:
            self._display.show()

    def tell(self, newcomer: Sink) -> None:
        """Tell somebody who comes later what happened so far."""
        at, record = self.position, self.history.snapshot()
        newcomer.handle(replace(self._opened, num_epochs=self._replica.loop.num_epochs))
        if record:
            newcomer.handle(Rewound(at.epoch, at.split, at.step, record, 0, 0))
        for evaluated in self.history.evaluated.values():
            newcomer.handle(evaluated)
        newcomer.handle(StatusChanged(self._status, at.epoch, at.split, at.step, at.total))

    def saved(self) -> tuple[Sequence[CheckpointInfo], str | None]:
        """The checkpoints on the disk right now, and the label of the best: as `checkpoints`, but nothing
        is waited for."""
        return self._replica.saving.saved()

    @property
    def lacks(self) -> str:
        """What is missing before it can train; nothing where it can."""
        return "" if "train" in self._replica.loop.passes else "there is nothing to train on: give it loaders"

    def note(self, text: str) -> None:
        """Write a line into the log of what happened, at a step boundary; from any thread."""
        with self._driver.held():
            self._emit(Notice(text))
            self._rest()

    def freeze(self) -> None:
        """Leave of the panel only what a saved notebook shows: curves and table, as they are now."""
        if self._display is not None:
            self._display.freeze()

    @names_descriptors
    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        if self._display is None:
            from ..widget.notebook_renderer import display_of_page  # only IPython asks

            display = display_of_page()
            if display is not None:
                self.shown_on(display)
        more = {} if self._display is None else self._display.bundle()
        return {"text/plain": repr(self), **more}

    def _blocking(self) -> AbstractContextManager[Callable[[], None]]:
        """While a verb keeps this thread from everything else."""
        __tracebackhide__ = True
        self._driver.require_own()
        return nullcontext(_nothing) if self._display is None else self._display.blocking()


def _nothing() -> None:
    pass


class Epochs(int):
    """A number of epochs, which is set and not called, as it is on the builder."""

    def __new__(cls, number: Any) -> Epochs:
        if not isinstance(number, Integral) or isinstance(number, bool):
            raise ValueError(f"num_epochs = {number!r:.60}: give a whole number of epochs")
        return super().__new__(cls, number)

    def __call__(self, epochs: Any) -> Any:
        raise TypeError(
            f"num_epochs({epochs!r:.30}) is a verb of the builder; on a Learner it is a number: "
            f"learner.num_epochs = {epochs!r:.30} sets it, and fit(epochs=n) trains n epochs more"
        )


_HERE = {
    "break_on": "learner.breakpoints.add(condition) adds one to this one",
    "checkpoint": "learner.restore(which) goes to one",
    "autosave": "learner.save() saves now",
    "with_file_checkpointer": "learner.save() saves now, where the learner keeps files",
    "devices": "learner.fleet shows those in use",
    "metrics": "learner.evaluate(loader, metrics=[...]) measures others",
    "train_step": "a %%train cell changes it",
    "valid_step": "a %%valid cell changes it",
    "loss": "a %%train cell changes the step",
    "build": "what is to change is given to the builder",
}
"""What a learner that is built can do instead."""


def _why_built(verb: str) -> str:
    said = (
        f"{verb}(...) is a verb of LearnerBuilder, called before build(model, optimizer): say it there, and "
        "build the learner again (with .resume() it goes on from its last checkpoint)"
    )
    return f"{said}; {_HERE[verb]}" if verb in _HERE else said
