"""The steps and losses by which a run was trained, kept while the process lives: its past steps are taken
again by the code of then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..event.position import Position


class Code(NamedTuple):
    """What a run trains by."""

    train_step: Any
    valid_step: Any
    loss: Any

    @staticmethod
    def of(settings: Any) -> Code:
        """What the builder's options say now."""
        return Code(settings.train_step, settings.valid_step, settings.loss)

    def is_same(self, other: Code) -> bool:
        """Whether both have the same functions."""
        return all(one is its for one, its in zip(self, other, strict=True))

    def with_cells_of(self, other: Code) -> Code:
        """The same, but for the cells of another one: a cell that was run stays in use when the run goes
        back, as the notebook shows it; functions come and go with the state."""
        steps = (each if hasattr(each, "cell_text") else mine for mine, each in zip(self, other, strict=True))
        return Code(*steps)


def is_code(name: str) -> bool:
    """Whether a member of a recipe, by its dotted name, says it.

    >>> is_code("source.train_step"), is_code("loss.name"), is_code("model.parameters")
    (True, True, False)
    """
    return name.removeprefix("source.").partition(".")[0] in Code._fields


Edit = tuple[Position, Callable[[], None]]
"""A change that was made by hand: where, and what makes it again."""


class MadeByHand(NamedTuple):
    """What was changed by hand on some lines of a run."""

    all: Callable[[], Sequence[Edit]]
    code: Callable[[Position], AbstractContextManager[None]]
    """Inside, steps run the code that was in force at a place."""

    def edits(self, start: Position, target: Position) -> list[Edit]:
        """The changes between two places, in their order."""
        return [edit for edit in self.all() if start <= edit[0] <= target]


class FormerCode:
    """Which change by hand led to which code.

    Args:
        settings: the builder's options, as they are now.
    """

    def __init__(self, settings: Any) -> None:
        self.put: Callable[[Code], None] = lambda code: None
        """Trains by this code from here on, on the way through past steps."""
        self._settings = settings
        self._first = self._last = Code.of(settings)
        self._has_stepped = False
        self._after: dict[str, Code] = {}

    @property
    def now(self) -> Code:
        """What the run trains by now."""
        return Code.of(self._settings)

    def stepped(self) -> bool:
        """Steps were taken; return whether they are the first ones of this process. These tell the code that
        it began with, which stands for that of the steps before, too: an earlier process took them."""
        if self._has_stepped:
            return False
        self._first = self._last = self.now
        self._has_stepped = True
        return True

    def went_back(self) -> None:
        """The run has gone back, and some of its code with it."""
        self._last = self.now

    def note(self, change: str) -> None:
        """The change of this name may have led to the code of now."""
        if self._has_stepped and not self._last.is_same(self.now):  # before the first step nothing is an edit
            self.put_in(change)

    def put_in(self, change: str) -> None:
        """The change of this name has led to the code of now."""
        self._last = self._after[change] = self.now

    def after(self, change: str) -> Code | None:
        """The code that a change led to; None if it changed none, or another process made it."""
        return self._after.get(change)

    def in_force(self, changes: Sequence[str]) -> Code:
        """The code after these changes, in their order."""
        base = self._first if self._has_stepped else self.now
        return next((self._after[each] for each in reversed(changes) if each in self._after), base)
