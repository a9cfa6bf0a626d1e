"""Changes of the training's shape, and all that follows them: layers that come or go, another optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim import Optimizer

from ..errors import StateError
from ..event import Marked, Notice
from ..event.position import Position
from ..state.composition import InUse
from ..state.parts import RngPart
from ..state.shape import Change, ShapePart
from ..state.state import ModelPart, Part, State, optimizer_part
from ..state.timeline import Timeline
from ..step.schedule import Schedule
from ..step.update import Update
from .loop import Loop


def name_of(function: Any) -> str:
    """The name by which a file notes a function; empty if another one may have the same.

    >>> name_of(len), name_of(lambda learner: None)
    ('len', '')
    """
    name: str = getattr(function, "__name__", "")
    return "" if name == "<lambda>" else name


def _require_an_average(update: Update) -> None:
    """Raise if the moving average is one of other layers."""
    average = update.average
    mine = [] if average is None else [each.shape for each in average.module.parameters()]
    if average is not None and mine != [each.shape for each in update.model.parameters()]:
        raise StateError(
            "ema() keeps an average of the layers that the model was built with; a layer that comes or goes "
            "has none. Unfreezing works. Build the learner without ema(), or anew with the other layers"
        )


class Reshaping:
    """The training as the owner of its shape.

    Args:
        loop: the loop.
        parts: the parts of the state. The shape becomes one of them, and another optimizer another one.
        rng: the random stream of the run.
        timeline: the keyframes.
        log: the changes that led to the given objects.
        fixed: whether layers cannot change, as their weights are in parts while steps run.
    """

    def __init__(
        self,
        loop: Loop,
        parts: dict[str, Part],
        rng: RngPart,
        timeline: Timeline,
        log: Sequence[Change],
        fixed: bool,
    ) -> None:
        self.functions: Callable[[], tuple[Any, ...]] = tuple
        self.use_functions: Callable[[tuple[Any, ...]], None] = lambda functions: None
        """The steps and the loss that the user gave, and what sets them."""
        self.renew: Callable[[], None] = lambda: None
        """Looks up the model's own steps again."""
        self._loop, self._parts, self._rng, self._timeline = loop, parts, rng, timeline
        model = parts["model"]
        assert isinstance(model, ModelPart)
        self.shape = loop.noted = ShapePart(model, self, log, fixed)
        at = list(parts).index("scheduler") + 1  # after the model that it looks at
        others = [(name, parts.pop(name)) for name in list(parts)[at:]]
        parts.update([("shape", self.shape), *others])

    @property
    def place(self) -> Position:
        """Where the training stands."""
        return self._loop.position

    @property
    def borrows(self) -> bool:
        """Whether it has other parts for a moment, such as the schedule of a trial."""
        return self._loop.trying

    def in_use(self) -> InUse:
        """What the training consists of, apart from the model."""
        update = self._loop.update
        return InUse(update.optimizer, update.schedule, self.functions())

    def use(self, parts: InUse) -> None:
        """Train with these from here on."""
        update = self._loop.update
        if update.optimizer is not parts.optimizer or update.schedule is not parts.schedule:
            update.use(parts.optimizer, parts.schedule)
            self._loop.schedule = update.schedule
            self._parts["optimizer"] = optimizer_part(update.optimizer)
            self._parts["scheduler"] = update.schedule
        self.use_functions(parts.functions)

    def use_these(self, optimizer: Optimizer, schedule: Schedule) -> None:
        """The user has set another optimizer or schedule."""
        self.use(InUse(optimizer, schedule, self.functions()))

    def changed(self, text: str) -> None:
        """Follow a change. `text` tells the user what changed."""
        loop = self._loop
        _require_an_average(loop.update)
        self.renew()
        order = loop.update.follow_model()
        loop.look_around()
        carried: Any = self._parts["carried"]
        carried.find_again()
        if loop.ranks is not None:
            loop.ranks.reshaped(order)
        if loop.watch is not None:
            loop.watch.look_again()
        if text and loop.iteration and not loop.passing:
            self._timeline.wanted = True
            at = loop.position
            loop.emit(Marked("edited", at.epoch, at.split, at.step, text))

    def tell(self, text: str) -> None:
        """Warn the user."""
        self._loop.emit(Notice(text, "warning"))

    @contextmanager
    def in_the_run(self) -> Iterator[None]:
        """Inside, changes are a part of the run: their random draws, and what else they change, count."""
        if self._rng.running:  # another thread holds the run at this boundary
            yield
            return
        carried: Any = self._parts["carried"]
        carried.begin()
        self._rng.enter()
        try:
            yield
        finally:
            carried.rest()
            self._rng.leave()

    def in_shape_of(self, state: State, here: State, capture: Callable[[], State]) -> State:
        """Go to the shape of a state from a file, and return what is captured then."""
        with self._rng.lent():
            self.shape.go_to(state.parts.get("shape"), state.position.key)
        return here if self.shape.look() is here.parts["shape"] else capture()
