"""The steps and losses by which a run was trained: its past steps are taken again by the code of then.

A process keeps those that it trained by. Cells of earlier processes are made of their recorded text, if this
user has run them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from ..event.position import Position
from .own_text import signature
from .source_text import LONGEST


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
        back, as the notebook shows it; functions, and cells of the record, come and go with the state."""
        stays = (hasattr(each, "cell_text") and not each.is_recorded for each in other)
        return Code(*(each if keep else mine for mine, each, keep in zip(self, other, stays, strict=True)))

    def cells(self) -> Iterator[tuple[str, Any]]:
        """The steps that are cells, with their names."""
        return ((name, step) for name, step in self._asdict().items() if hasattr(step, "cell_text"))


def is_code(name: str) -> bool:
    """Whether a member of a recipe, by its dotted name, says it.

    >>> is_code("source.train_step"), is_code("loss.name"), is_code("model.parameters")
    (True, True, False)
    """
    return field_of(name) in Code._fields


def field_of(member: str) -> str:
    """The field of Code that a member of a recipe belongs to, if it is code.

    >>> field_of("source.train_step"), field_of("train_step.reads.scale")
    ('train_step', 'train_step')
    """
    return member.removeprefix("source.").partition(".")[0]


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
        self.put: Callable[[Code, bool], None] = lambda code, follows: None
        """Trains by this code from here on, on the way through past steps; whether a cell has the values that
        the one before it carried."""
        self.make: Callable[[str, str, Mapping[str, Any]], Any] = lambda name, text, options: None
        """Makes a cell of its recorded text and options; None where cells cannot be run."""
        self._settings = settings
        self._first = self._last = Code.of(settings)
        self._has_stepped = False
        self._after: dict[str, Code] = {}
        self._begun: Mapping[str, Any] = {}
        self._signed: set[str] = set()
        self._made: dict[tuple[Any, ...], Any] = {}

    @property
    def now(self) -> Code:
        """What the run trains by now."""
        return Code.of(self._settings)

    # Of this process ---------------------------------------------------------------------------------

    def stepped(self) -> bool:
        """Steps were taken; return whether they are the first ones of this process. Where the record has no
        cells that may run again, these tell the code of the steps before, too: an earlier process took
        them."""
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

    # Of earlier ones ---------------------------------------------------------------------------------

    def goes_on(self, begun: Mapping[str, Any], signed: Any) -> None:
        """An earlier process began the run with these members of a recipe; it signed what it ran."""
        self._begun = begun
        self._signed = (
            {each for each in signed if isinstance(each, str)} if isinstance(signed, list) else set()
        )

    def signed(self) -> list[str]:
        """The signatures of all cells by which the run was trained, this process's own among them."""
        own = {(name, step.cell_text) for code in self._own() for name, step in code.cells()}
        found = (signature(*each) for each in own if len(each[1]) <= LONGEST)
        return sorted({*self._signed, *filter(None, found)})

    def has(self, members: Mapping[str, Any], name: str) -> bool:
        """Whether a step of a recipe can be taken again here."""
        return self._cell(name, members) is not None

    def _cell(self, name: str, members: Mapping[str, Any]) -> Any:
        text = members.get(f"source.{name}")
        if not isinstance(text, str):
            return None
        options = {key.removeprefix(f"{name}."): each for key, each in members.items()}
        for code in self._own():
            for its, step in code.cells():
                if (its, step.cell_text) == (name, text) and step.options.items() <= options.items():
                    return step
        told = name, text, *sorted((key, str(each)) for key, each in options.items() if key not in members)
        if told not in self._made and signature(name, text) in self._signed:
            self._made[told] = self.make(name, text, options)
        return self._made.get(told)

    def _own(self) -> Collection[Code]:
        return [self.now, self._first, *self._after.values()]

    # At a place --------------------------------------------------------------------------------------

    def leads_on(self, change: Mapping[str, Any], members: Mapping[str, Any]) -> bool:
        """Whether the code to which a change led is there; `members` are the recipe's after it."""
        names = {field_of(name) for name in change["changed"] if is_code(name)}
        return change["id"] in self._after or all(self.has(members, name) for name in names)

    def in_force(self, changes: Sequence[Mapping[str, Any]]) -> Code:
        """The code after these changes, in their order."""
        code, members = self._first if self._has_stepped else self.now, dict(self._begun)
        code = self._with_cells(code, members, ("train_step", "valid_step"))
        for change in changes:
            members |= {name: pair[1] for name, pair in change.get("changed", {}).items()}
            if change["id"] in self._after:
                code = self._after[change["id"]]
            else:
                code = self._with_cells(code, members, {field_of(name) for name in change.get("changed", ())})
        return code

    def _with_cells(self, code: Code, members: Mapping[str, Any], names: Iterable[str]) -> Code:
        cells = {name: self._cell(name, members) for name in names if name in Code._fields}
        return code._replace(**{name: cell for name, cell in cells.items() if cell is not None})
