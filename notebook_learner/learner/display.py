"""The part of a Learner that is shown: which display it has, and what the display receives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import names_descriptors
from ..event import Display, Rewound, Sink, StatusChanged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..checkpoint.info import CheckpointInfo
    from ..renderer.summary import Summary
    from ..widget.branch_lines import LeftBranches
    from .panel import LearnerPanel

from .core import LearnerCore


class DisplayVerbs(LearnerCore):
    """How a learner appears on a page. A class of its own only because a file has one subject."""

    _builder_verbs: ClassVar[frozenset[str]] = frozenset()
    """The names of LearnerBuilder's verbs, set by LearnerBuilder: an error explains that they are over."""
    _panel: LearnerPanel | None = None

    if not TYPE_CHECKING:  # a type checker would take every misspelt verb for an attribute

        def __getattr__(self, name: str) -> Any:
            """Explain that a verb of the builder comes before `build`; called for every unknown name. Some
            values that have moved to `learner.tools` are still read here."""
            if name in _ALSO:
                return getattr(self.tools, name)
            own = f"{type(self).__name__!r} object has no attribute {name!r}"
            if name in MOVED:
                own += f"; it is learner.{MOVED[name]}"
            elif name in type(self)._builder_verbs:
                own += f"; {why_built(name)}"
            raise AttributeError(own, name=name, obj=self)

    def _shown_on(self, display: Display) -> None:
        """Let a display show this learner when it trains, and when it is a cell's last line."""
        with self._driver.held():
            self._display = display
            display.attach(self)
            self._replica.sinks.add(display)

    @names_descriptors
    def plot(self, metrics: str | Iterable[str] | None = None) -> Figure:
        """Draw the curves so far as a matplotlib figure: of one metric, of several, or of all."""
        from ..renderer.figure import plot

        return plot(self.history, metrics, infos=self._opened.metrics)

    @names_descriptors
    def summary(self) -> Summary:
        """Summarize model, settings, and the best and worst epochs of every metric."""
        from ..renderer.summary import Summary, summary_rows

        opened, loop = self._opened, self._replica.loop
        settings = {**opened.settings, "epochs": f"{loop.epoch - 1} of {loop.num_epochs}"}
        rows = summary_rows(self.history, opened.metrics)
        return Summary(opened.model, opened.parameters, settings, rows)

    def _show(self) -> None:
        """Show the panel, if there is one, below the running cell. `fit` and `start` do so."""
        __tracebackhide__ = True
        self._driver.require_own()
        if self._display is not None:
            self._display.show()

    def _tell(self, newcomer: Sink) -> None:
        """Send a new display everything that happened before it was opened."""
        at, record = self.position, self.history.snapshot()
        newcomer.handle(replace(self._opened, num_epochs=self._replica.loop.num_epochs))
        if record:
            newcomer.handle(Rewound(at.epoch, at.split, at.step, record, 0, 0))
        for evaluated in self.history.evaluated.values():
            newcomer.handle(evaluated)
        for sheet in self.history.sheets:
            newcomer.handle(sheet)
        newcomer.handle(StatusChanged(self._status, at.epoch, at.split, at.step, at.total))

    def _saved(self) -> tuple[Sequence[CheckpointInfo], str | None]:
        """The checkpoints on the disk right now, and the label of the best: like `checkpoints`, but without
        waiting."""
        return self._replica.saving.saved()

    def _shown_beside(self) -> LearnerPanel:
        """What `learner.panel` is."""
        if self._panel is None:
            from .panel import LearnerPanel

            self._panel = LearnerPanel(self)
        return self._panel

    @property
    def _is_compact(self) -> bool:
        return self._panel is not None and self._panel.is_compact

    def _lay_over(self, name: str, shown: bool) -> str:
        """Lay over a run that the page offers, or take it away."""
        return self._shown_beside()._lay_over(name, shown)

    @property
    def _branch_changes(self) -> int:
        """Grows when the run leaves a branch, goes to one, or takes one again; and with other runs."""
        return self._supplies.branches.changes + (0 if self._panel is None else self._panel._changes)

    def _left(self) -> LeftBranches:
        """The branches that the run has left, and other runs, read without waiting for it."""
        from .branching import left_by

        beside = self._shown_beside()
        return left_by(self)._replace(others=beside.overlays, offered=beside._offered)

    @property
    def _lacks(self) -> str:
        """What is missing before the learner can train; empty if it can train."""
        return "" if "train" in self._replica.loop.passes else "there is nothing to train on: give it loaders"

    def _display_here(self) -> Display | None:
        """The display, for IPython, which shows the learner; a page opens one if there is none."""
        if self._display is None:
            from ..widget.notebook_renderer import display_of_page  # only IPython asks

            display = display_of_page()
            if display is not None:
                self._shown_on(display)
        return self._display

    @names_descriptors
    def _ipython_display_(self) -> None:
        appear = getattr(self._display_here(), "appear", None)  # a user's own display may have none
        if appear is None or not appear():
            raise NotImplementedError  # so that IPython asks for the bundle

    @names_descriptors
    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        display = self._display_here()
        return {"text/plain": repr(self), **({} if display is None else display.bundle())}


class Epochs(int):
    """A number of epochs, which is set and not called; on the builder it is called."""

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
    "with_file_checkpointer": "learner.save() saves now, if the learner keeps files",
    "devices": "learner.devices shows those in use",
    "metrics": "learner.evaluate(loader, metrics=[...]) measures others",
    "train_step": "a %%train cell changes it",
    "valid_step": "a %%valid cell changes it",
    "loss": "a %%train cell changes the step",
    "build": "what is to change is given to the builder",
}
"""What a built learner can do instead."""


_ALSO = ("ema_model", "evaluations", "branches", "timeline", "go_to", "ask", "split_batch", "panel")
"""Names of `learner.tools` that can be read from the learner, too."""
MOVED = {
    "fleet": "devices",
    "restart": "devices.restart()",
    "freeze": "tools.freeze()",
    "lr_find": "tools.lr_find(...)",
    "note": "tools.note(text)",
    "reload_code": "tools.reload_code()",
    "try_step": "tools.try_step(...)",
    "use_step": "tools.use_step(split, function)",
}
"""Former names of a Learner, and where each is now."""


def why_built(verb: str) -> str:
    """Why a Learner has no such verb, and what to do instead."""
    said = (
        f"{verb}(...) is a verb of LearnerBuilder, called before build(model, optimizer): say it there, and "
        "build the learner again (with .resume() it goes on from its last checkpoint)"
    )
    return f"{said}; {_HERE[verb]}" if verb in _HERE else said
