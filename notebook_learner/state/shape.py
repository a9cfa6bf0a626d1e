"""The shape of a training as a part of the state, with the changes that led to it.

In memory a shape refers to the live objects. A file names them, and the functions that changed them: another
process calls the same functions, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import StateError
from ..event.position import Position
from ..step.own_loss import CELL
from .composition import Changeable, Composition
from .state import Held, ModelPart

Key = tuple[int, int, int]
_FAR = 1 << 40
_MOST = 63
"""Further compositions that are remembered. What a keyframe refers to lives with the keyframe."""


class Change(NamedTuple):
    """One change of the shape."""

    name: str
    """Of the function that made it; empty if a cell or a step made it."""
    key: Key
    """The position."""
    iteration: int
    """The training steps before it."""
    before: str
    """The digest of the composition that was changed."""

    def __str__(self) -> str:
        return f"{self.name or 'a change by hand'} (at training step {self.iteration})"


class Shape(Held):
    """A captured shape.

    Args:
        composition: the live objects.
        trains: whether each parameter trains.
        log: the changes so far.
        coming: changes that were made further on, before the run went back. They are made there again.
    """

    __slots__ = ("coming", "composition", "log", "trains")

    def __init__(
        self,
        composition: Composition,
        trains: tuple[bool, ...],
        log: tuple[Change, ...],
        coming: tuple[Change, ...],
    ) -> None:
        self.composition, self.trains, self.log, self.coming = composition, trains, log, coming

    def held(self) -> Sequence[Tensor]:
        return ()

    def plain(self) -> dict[str, Any]:
        names = self.composition.names
        pairs = zip(names["parameters"], self.trains, strict=True)
        return {
            **names,
            "frozen": [name for name, trains in pairs if not trains],
            "digest": self.composition.digest,
            "functions": self.composition.functions,
            "log": [list(each) for each in self.log],
            "coming": [list(each) for each in self.coming],
        }

    def __eq__(self, other: object) -> bool:
        """Whether both say the same of two programs that are alike. Their code may differ: what it does shows
        in the other parts."""
        return isinstance(other, Shape) and {**self.plain(), "functions": []} == {
            **other.plain(),
            "functions": [],
        }

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return _of_another_process, (self.plain(),)


class NamesAlone(Composition):
    """A composition of another process."""

    def __init__(self, plain: Mapping[str, Any]) -> None:
        self.owner = None
        self.names = {name: plain[name] for name in ("modules", "parameters", "optimizers")}
        self.digest = plain["digest"]
        self.functions = [[*each] for each in plain.get("functions", ())]
        if not all([*map(type, each)] == [str, str, str] for each in self.functions):
            raise ValueError("a function that is not described by three texts")


def _of_another_process(plain: Mapping[str, Any]) -> Shape:
    """The shape that a file, or another process, tells of.

    Raises:
        StateError: it is no shape.
    """
    try:
        frozen = {*plain["frozen"]}
        trains = tuple([name not in frozen for name in plain["parameters"]])
        return Shape(NamesAlone(plain), trains, _changes(plain["log"]), _changes(plain["coming"]))
    except (KeyError, TypeError, ValueError) as wrong:
        told = f"this file does not hold a valid state: its shape is not one ({wrong!r:.200})"
        raise StateError(told) from wrong


class ShapePart:
    """The part: it notices what was changed, and goes back over it.

    Args:
        model: the part that walks through the model's layers.
        owner: the training.
        log: the changes that led to the given objects, if they come from the middle of a run.
        fixed: whether layers cannot change, as their weights are in parts while steps run.
    """

    def __init__(self, model: ModelPart, owner: Changeable, log: Sequence[Change], fixed: bool) -> None:
        self.functions: dict[str, Any] = {}
        """What changes the shape, by name."""
        self.fixed = fixed
        self.changing = False
        """Whether one of them runs now."""
        self._model, self._owner = model, owner
        self._log, self._coming = tuple(log), tuple[Change, ...]()
        self._planned = False
        """Whether it is known here which changes are still to come: a file says what another process knew."""
        self._nameless: dict[Change, Callable[[], Any]] = {}
        """Functions without a name, by the changes that they made."""
        self._known: list[Shape] = []
        """The compositions that were seen last, with the changes that had led to them."""
        self._now: Shape | None = None
        self._told: list[str] = []

    # Looking -----------------------------------------------------------------------------------------

    def look(self, tell: bool = True) -> Shape:
        """The shape now. What was changed by hand is noted, and told to the user."""
        self._model.look_through()
        return self.capture(tell)

    def capture(self, tell: bool = True) -> Shape:
        """The same, after the model was looked through."""
        now, parts, told = self._now, self._owner.in_use(), None
        if now is None:
            composition = Composition(self._model, self._owner)
        elif self._must_be_as_it_was or now.composition.is_still(self._model, parts):
            composition = now.composition
        else:
            composition = Composition(self._model, self._owner)
            told = "" if self.changing else self._noted(now.composition, composition)
        trains = tuple([each.requires_grad for each in composition.parameters])
        last = None if now is None else (now.composition, now.trains, now.log, now.coming)
        if now is None or last != (composition, trains, self._log, self._coming):
            self._now = now = Shape(composition, trains, self._log, self._coming)
            if told is not None or not self._known:
                self._known = [*self._known[-_MOST:], now]
        if told is not None:
            self._owner.changed(told if tell else "")
        return now

    @property
    def _must_be_as_it_was(self) -> bool:
        return self.fixed or (self._owner.borrows and not self.changing)

    def _noted(self, before: Composition, after: Composition) -> str:
        if before.digest != after.digest:
            at = self._owner.place
            self._log = (*self._log, Change("", at.key, at.iteration, before.digest))
        return f"changed by hand: {differences(before.names, after.names)}"

    @property
    def written(self) -> list[Any]:
        """The functions as the user wrote them."""
        return [each.function for each in self.functions.values()]

    # Changing ----------------------------------------------------------------------------------------

    @property
    def log(self) -> tuple[Change, ...]:
        """The changes so far."""
        return self._log

    def change(self, name: str, function: Callable[[], Any]) -> None:
        """Let a function change the shape here, and note it. Changes that are still to come are dropped: a
        new course begins here."""
        coming, self._coming = self._coming, ()
        try:
            self.try_out(name, function)
        except BaseException:
            self._coming = coming
            raise
        self._planned = True
        if name:
            self.functions[name] = function
        else:
            self._nameless[self._log[-1]] = function

    def drop(self) -> None:
        """Drop the changes that are still to come."""
        self._coming, self._planned = (), True

    def reached(self, position: Position) -> None:
        """Make the changes again that were made at this position."""
        while self._coming and self._coming[0].key == position.key:
            change, *rest = self._coming
            self.try_out(change.name, self._function(change))
            self._coming = tuple(rest)

    def allowance(self, position: Position) -> int:
        """How many steps there are to the next change that is to be made again."""
        there = [each.key[2] - position.step for each in self._coming if each.key[:2] == position.key[:2]]
        return min([steps for steps in there if steps > 0], default=_FAR)

    def try_out(self, name: str, function: Callable[[], Any]) -> None:
        """Let a function change the shape here. What is to come stays."""
        before, at, log = self.look(), self._owner.place, self._log
        self._log = (*log, Change(name, at.key, at.iteration, before.composition.digest))
        try:
            with self._change_under_way():
                function()
                self.look()
        except BaseException:
            self._log = log
            raise
        self._owner.changed(f"reshaped by {name}" if name else "reshaped")

    @contextmanager
    def _change_under_way(self) -> Iterator[None]:
        self.changing, before = True, self.changing
        try:
            yield
        finally:
            self.changing = before

    def _function(self, change: Change, spare: Sequence[str] = ()) -> Callable[[], Any]:
        if change in self._nameless:
            return self._nameless[change]
        name = change.name or next(iter(spare), "")
        if name not in self.functions:
            raise StateError(_missing(change))
        known: Callable[[], Any] = self.functions[name]
        return known

    # Going back --------------------------------------------------------------------------------------

    def restore(self, state: Shape | Mapping[str, Any] | None) -> None:
        """Go to the shape of this position."""
        self.go_to(state, self._owner.place.key)

    def go_to(self, state: Shape | Mapping[str, Any] | None, at: Key) -> Shape:
        """Go to a shape: back by reference, or on by the functions that a file names. Return the shape of
        before.

        Args:
            state: the shape, captured or from a file.
            at: the position at which it was captured.

        Raises:
            StateError: a function is missing. Nothing has changed.
        """
        here = self.look()
        if state is None:
            return here
        there = state if isinstance(state, Shape) else _of_another_process(state)
        log, coming = there.log, there.coming
        try:
            if there.composition.owner is self._owner:
                self._stand(there.composition, there.trains)
            else:
                self._go_as_told(there)
        except BaseException:
            self.back_to(here)
            raise
        later = (*here.log[len(log) :], *here.coming)
        on_its_way = here.log[: len(log)] == log and all(each.key >= at for each in later)
        if self._planned and on_its_way:  # else the state says what was to come on another course
            coming = tuple(each for each in later if each.name or each in self._nameless)
        self._log, self._coming = log, coming
        self._planned |= bool(log or coming)
        return here

    def back_to(self, here: Shape) -> None:
        """Undo `go_to`, given what it returned."""
        self._stand(here.composition, here.trains)
        self._log, self._coming = here.log, here.coming

    def _go_as_told(self, there: Shape) -> None:
        log, digest = there.log, there.composition.digest
        known = [each for each in self._known if log[: len(each.log)] == each.log]
        same = [each for each in known if each.log == log and each.composition.digest == digest]
        functions = there.composition.functions
        same = [each for each in same if each.composition.functions == functions] or same
        nearest = same[-1] if same else max(known, key=lambda each: len(each.log), default=self._now)
        if nearest is not None and not self.fixed:
            self._stand(nearest.composition, nearest.trains)
            if not same:
                self._follow(log, len(nearest.log))
        mine = self._here.composition
        self._tell_of_functions(mine.functions, functions)
        if list(mine.names["parameters"]) == list(there.composition.names["parameters"]):
            self._set(mine, there.trains)

    def _tell_of_functions(self, mine: list[list[str]], theirs: list[list[str]]) -> None:
        """Tell the user once of a step or a loss that is another one than in a file."""
        now = {role: (name, digest) for role, name, digest in mine}
        for role, name, digest in theirs:
            told = _another(role, now.get(role), name, digest)
            if told and told not in self._told:
                self._told.append(told)
                self._owner.tell(told)

    def _follow(self, log: tuple[Change, ...], made: int) -> None:
        """Make changes that another process made, unless the program begins with them."""
        spare = [name for name in self.functions if all(each.name != name for each in log)]
        for number, change in enumerate(log[made:], made + 1):
            self._log = log[:number]
            if change.before == self._here.composition.digest:
                function = self._function(change, spare)
                spare = spare[not change.name :]
                with self._change_under_way():
                    function()
                    self.look()

    @property
    def _here(self) -> Shape:
        assert self._now is not None
        return self._now

    def _stand(self, composition: Composition, trains: Sequence[bool]) -> None:
        self._set(composition, trains)
        if self._here.composition is not composition:
            composition.put()
            self._now = Shape(composition, tuple(trains), self._log, self._coming)
            self._owner.changed("")

    def _set(self, composition: Composition, trains: Sequence[bool]) -> None:
        for parameter, flag in zip(composition.parameters, trains, strict=True):
            if parameter.requires_grad is not flag:
                parameter.requires_grad_(flag)


def _another(role: str, mine: tuple[str, str] | None, name: str, digest: str) -> str:
    """How a function of now differs from that of a file; empty if it does not, or if that is not known."""
    if name == CELL:
        return ""
    if mine is None:
        return f"the checkpoint was trained with {role} = {name}, and this learner has none"
    versions = {each.partition(":")[0] for each in (mine[1], digest) if ":" in each}
    if mine[0] != name:
        return f"{role}: the checkpoint was trained with {name}, this learner has {mine[0]}: kept {mine[0]}"
    if mine[1] == digest or not (mine[1] and digest) or len(versions) > 1:
        return ""
    return f"{role}: {name} is not the code that the checkpoint was trained with: kept the code of now"


def _changes(told: Sequence[Any]) -> tuple[Change, ...]:
    found = []
    for name, key, iteration, before in told:
        if [*map(type, (name, before, *key, iteration))] != [str, str, int, int, int, int]:
            raise ValueError("no change")
        found.append(Change(name, tuple(key), iteration, before))
    return tuple(found)


def _missing(change: Change) -> str:
    if change.name:
        return (
            f"this state was captured after {change}, and that function is not known here. Give it to the "
            f"builder: .reshapes({change.name})"
        )
    return (
        f"this state was captured after {change}: layers, parameters or groups came or went. Write the "
        "change as a function, def change(learner), and give it to the builder: .reshapes(change). In a new "
        "run, learner.reshape(change) makes it and notes its name"
    )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """How two compositions differ, in words.

    >>> one = {"modules": {"": "Net"}, "parameters": {"a": [1], "b": [2]}, "optimizers": {}}
    >>> differences(one, {**one, "parameters": {"a": [1], "c": [2]}})
    'c came, b went'
    """
    told = []
    old, new = before["parameters"], after["parameters"]
    for names, other, word in ((new, old, "came"), (old, new, "went")):
        if found := [name for name in names if name not in other]:
            told.append(f"{_few(found)} {word}")
    if found := [name for name in new if name in old and old[name] != new[name]]:
        told.append(f"{_few(found)} has another size")
    if before["optimizers"] != after["optimizers"]:
        told.append("another optimizer or other parameter groups")
    if not told and before["modules"] != after["modules"]:
        told.append("other layers")
    return ", ".join(told) or "another optimizer, schedule, step or loss"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
