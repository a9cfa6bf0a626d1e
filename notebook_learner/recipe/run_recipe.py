"""The recipe of one run: gathered when it begins, compared when it goes on, and kept up to date with what is
changed by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import nn

from ..artifacts.branches import RecordedFork, forks_in
from ..artifacts.index import read_header
from ..artifacts.recorded_recipe import flat
from ..artifacts.run_info import git_commit
from ..errors import DamagedError
from ..event.position import Position
from ..event.values import Event, Marked, MetricBlock, Rewound, RunOpened, Split, SplitStarted
from ..state.standing_values import said_touched
from ..step.schedule import rates_of, set_rates
from ..step.update import Update
from ..store.json_text import to_text
from . import environment, source_text
from .changes import (
    SPLIT,
    UNTOLD,
    Told,
    can_be_repeated,
    code_in,
    differences,
    in_force,
    is_on,
    is_option,
    latest,
    members_of,
    place_of,
    read,
)
from .data_fingerprint import fingerprint, loader_of
from .former_code import Code, FormerCode, MadeByHand, field_of, is_code
from .hyper_parameters import function_of, module_options, optimizers, put_options, schedule_of
from .plain_values import own_values, plain

MOST_CHANGES = 256
"""The latest changes that are kept."""
_LONGEST_WAIT = 5.0
"""Seconds that a file waits for what the thread gathers: versions, work tree, fingerprint."""
_FAR = Position(1 << 40)
Way = tuple[str, Position, Collection[str] | None]
"""A branch (or "" for the line that the run is on), the place up to which it is meant, and the changes by
hand at that very place that are on it (None: all)."""


class RunRecipe:
    """What made a run, and what was changed since.

    Args:
        settings: the builder's options, as they are now.
        model: the model.
        update: the training's update: its optimizer, its schedule, and in how many parts it takes a batch.
        place: returns where the run stands.
        num_epochs: returns the number of epochs.
        file: the run's `artifacts.h5`, which has the recipe of a run that goes on.
    """

    def __init__(
        self,
        settings: Any,
        model: nn.Module,
        update: Update,
        place: Callable[[], Position],
        num_epochs: Callable[[], int],
        file: Path,
    ) -> None:
        self.settings, self.model = settings, model
        self.given: Callable[[], Mapping[Split, Any]] = dict
        """Returns the data of each split; set when the learner has loaders."""
        self.found: Callable[[], str | None] = lambda: None
        """Returns the recipe in the checkpoint that was loaded last."""
        self.repeated: Callable[[], None] = lambda: None
        """Called after a change of the optimizer's options was made again, on the way through past steps."""
        self.code = FormerCode(settings)
        self._code_before: Told = {}
        """By what code an earlier process has trained, as its record says."""
        self._other_code: Told = {}
        """What of it is not that with which this process began."""
        self.touched: Sequence[str] = ()
        """What of weights, buffers and the optimizer's state the change that comes next has changed."""
        self._went_back: Position | None = None
        """Where the run went back to, as long as it has not gone on."""
        self._update, self._place, self._num_epochs = update, place, num_epochs
        self._file = file
        self._first: Told = {}
        """What the run began with."""
        self._known: Told = {}
        """The latest value of each member, by its dotted name."""
        self._changes: list[Told] = []
        self._open: Told | None = None
        """The change to which belongs what the thread finds; None if the run begins with it."""
        self._cells: list[str] = []
        """Those of earlier processes."""
        self._seen: dict[Split, Any] = {}
        """The data of which the fingerprint is known."""
        self._late: Told = {}
        self._gathering: threading.Thread | None = None
        self._lock = threading.Lock()
        self._text, self._text_cells = "", tuple[str, ...]()
        self._goes_on = self._fresh = False

    def handle(self, event: Event, /) -> None:
        """Follow the run: it opens, begins anew, or was changed."""
        if isinstance(event, RunOpened):
            self._fresh = True
            self._begin(self._before())
        elif isinstance(event, MetricBlock):
            if self.code.stepped() and self._goes_on:
                self._other_code = self._differing(code_in(self._quick()))
            self._go_on()
        elif isinstance(event, SplitStarted):
            if self._fresh and self._goes_on and (event.epoch, event.split) == (1, "train"):
                self._begin("")  # another run in this directory
            self._fresh = False
        elif isinstance(event, Rewound):
            self._fresh = False
            self._went_back = self._place()
            self.code.went_back()
            self.leave(Position(event.epoch, event.split, event.step), "-")
        elif isinstance(event, Marked) and event.kind == "edited":
            with self._lock:
                self._note(event.text, self._quick())
        elif isinstance(event, Marked) and event.kind == "forked" and event.text.startswith("to "):
            with self._lock:
                self._note(f"forked {event.text}", self._quick())
                self._changes[-1]["fork"] = event.text[3:]

    def text(self, wait: bool = False) -> str:
        """The recipe as JSON; empty before the run was opened.

        Args:
            wait: whether to wait for what a thread gathers.
        """
        if self._first and self._is_new_data():
            now = self._quick()
            if self._seen.keys() & self.given().keys():
                with self._lock:
                    self._note("other data", now)
                    self._open = self._changes[-1]
            self._gather(now)
        if wait:
            self._wait()
        with self._lock:
            if not self._first:
                return ""
            cells = self._own_cells()
            if not self._text or cells != self._text_cells:
                self._text_cells = cells
                whole = {**self._first, "cells": [*self._cells, *cells], "changes": self._changes}
                if self.settings.records_source and (signed := self.code.signed()):
                    whole["signed"] = signed
                self._text = to_text(whole)
            return self._text

    def members(self) -> Told:
        """The recipe as it would be now, by dotted names, with the fingerprint of the data."""
        told = self._quick()
        with suppress(Exception):  # of the user's data, whose classes may do anything
            told["data"] = {split: fingerprint(each) for split, each in self.given().items()}
        return members_of(told)

    def versions(self) -> dict[str, str]:
        """The versions of what is imported, by name."""
        return environment.versions()

    def of_checkpoint(self) -> Told:
        """The recipe that the checkpoint has which was loaded last, by dotted names."""
        return latest(read(self.found() or ""))

    def leave(self, position: Position, branch: str, shared: Collection[str] | None = None) -> list[str]:
        """The run goes back: what was changed by hand behind this place is on a branch now. Return what was
        changed on that branch, and at this place if both have it: the run may change it anew. Of several
        changes of one thing at one place it is the last.

        Args:
            position: the place.
            branch: the name of the branch.
            shared: the changes at that very place that stay on the run's line; by default those in force.
        """
        with self._lock:
            now = members_of(self._quick())
            own = [each for each in self._changes if is_on(each, "") and not each.get("resumed")]
            here = [each for each in own if place_of(each).key == position.key]
            stays = in_force(here, now) if shared is None else shared
            left = [
                each
                for each in own
                if place_of(each) > position or (each in here and each["id"] not in stays)
            ]
            for each in left:
                each["branch"] = branch
            self._known |= now
            self._text = ""
            on = [each for each in here if each["id"] in stays]
            on += [each for each in self._changes if is_on(each, branch) and not each.get("resumed")]
            last = {
                (place_of(each).key, *each["changed"]): str(each["text"])
                for each in on
                if not each.get("fork")
            }
            return [*last.values()]

    def forks(self) -> list[RecordedFork]:
        """The runs that began with a state of this one."""
        with self._lock:
            return forks_in(self._changes)

    def at(self, position: Position, later: bool = False, branch: str = "") -> list[str]:
        """The changes by hand at this place, and `later` on, that are on a branch; without a name, on the
        run's line."""
        with self._lock:
            own = [each for each in self._changes if is_on(each, branch) and not each.get("resumed")]
        return [
            each["id"]
            for each in own
            if place_of(each).key == position.key or (later and place_of(each) > position)
        ]

    def adopt(self, branch: str, end: Position, shared: Collection[str] | None = None) -> None:
        """The run goes on to a place of a branch: what was changed up to there is on its way again. Of what
        was changed at the place itself, only the `shared` changes are, if they are given."""
        with self._lock:
            for each in self._up_to(branch, end, shared):
                del each["branch"]
            self._text = ""

    def edits_on(self, ways: Sequence[Way]) -> list[tuple[Position, Callable[[], None]]]:
        """The changes of rates and other options of the optimizer that were made by hand on these lines, in
        their order, with what makes them again: those at one place in the order in which they were made.
        Where a schedule moves a rate, it goes on from there."""
        with self._lock:
            on = self._in_order(ways)
            known = [number for number, each in enumerate(on) if self._is_known(each, on[:number])]
        return [(place_of(on[number]), partial(self._repeat, on[: number + 1])) for number in known]

    def by_hand(self, ways: Sequence[Way] | None = None) -> MadeByHand:
        """What was changed by hand on these lines; by default on the way here."""
        on = [("", _FAR, None)] if ways is None else ways
        return MadeByHand(partial(self.edits_on, on), partial(self.code_at, on))

    @contextmanager
    def code_at(self, ways: Sequence[Way], place: Position) -> Iterator[None]:
        """Inside, steps run the code that was in force at a place of these lines; afterwards the cells of now
        are in use again."""
        with self._lock:
            on = [each for each in self._in_order(ways) if place_of(each) <= place]
        now = self.code.now
        self._take(self.code.in_force(on), follows=False)  # the state of that place has what a cell carried
        try:
            yield
        finally:
            self._take(self.code.now.with_cells_of(now))

    def _take(self, code: Code, follows: bool = True) -> None:
        if not code.is_same(self.code.now):
            self.code.put(code, follows)

    @property
    def has_other_code(self) -> bool:
        """Whether the code by which the run trains was changed by hand on its line."""
        with self._lock:
            on = [each for each in self._changes if is_on(each, "")]
        return any(is_code(name) for each in on for name in each["changed"])

    def follow(self, text: str) -> None:
        """Have the recipe of the run that another process trains."""
        self._begin(text)

    def take_recorded(self) -> str:
        """Train by the cells that the record has, if this process has been told of no other code. Return why
        that cannot be; empty if it can."""
        with self._lock:
            on = self._in_order([("", _FAR, None)])
        self._take(self.code.in_force(on))
        name = self._code_before.get("train_step.name")
        if name != "CellStep" or self.code.has(self._code_before, "train_step"):
            return ""
        return (
            "the cells in its record were not run by you on this machine, so they are not run for you, and "
        )

    def _in_order(self, ways: Sequence[Way]) -> list[Told]:
        """The changes on these lines in the order of their places; at one place, as they were made."""
        ids = {each["id"] for way in ways for each in self._up_to(*way)}
        return sorted(
            (each for each in self._changes if each["id"] in ids), key=lambda each: place_of(each).key
        )

    def _up_to(self, branch: str, end: Position, shared: Collection[str] | None) -> list[Told]:
        found = [each for each in self._changes if is_on(each, branch)]
        return [
            each
            for each in found
            if place_of(each) < end
            or (place_of(each).key == end.key and (shared is None or each["id"] in shared))
        ]

    def causes(self) -> list[str]:
        """What is other than when the run began, so that steps that are taken again may differ."""
        self.text(wait=True)
        with self._lock:
            changed: Told = {name: ({"resumed": True}, pair) for name, pair in self._other_code.items()}
            on = [each for each in self._changes if is_on(each, "")]
            for number, each in enumerate(on):
                if not self._is_known(each, on[:number]):
                    changed |= {name: (each, pair) for name, pair in each["changed"].items()}
        touched = [f"{said_touched(each['state'])} {_by_hand(each)}" for each in on if each.get("state")]
        return touched + [
            _as_cause(name, pair, "since the run went on" if each.get("resumed") else _by_hand(each))
            for name, (each, pair) in changed.items()
            if name.partition(".")[0] in _CAUSES
        ]

    @property
    def repeats_last(self) -> bool:
        """Whether the last change can be made again from what is recorded of it."""
        with self._lock:
            return not self._changes or can_be_repeated(self._changes[-1])

    def _is_known(self, change: Told, before: Sequence[Told]) -> bool:
        """Whether a change can be made again here: one of options, or of code that is there."""
        if can_be_repeated(change):
            return True
        if change.get("state"):
            return False
        others = [name for name in change.get("changed", {}) if not is_option(name)]
        members = latest({**self._first, "changes": [*before, change]})
        return all(map(is_code, others)) and self.code.leads_on(change, members)

    def _repeat(self, changes: Sequence[Told]) -> None:
        """Make the last one of these changes again."""
        change = changes[-1]
        if any(map(is_code, change.get("changed", ()))):
            self._take(self.code.in_force(changes))
        if not can_be_repeated(change):
            return
        optimizer, made = self._update.optimizer, {name: pair[1] for name, pair in change["changed"].items()}
        put_options(optimizer, made)
        self._update.divide(made.get(SPLIT, self._update.split))
        if len(change["rates"]) == len(optimizer.param_groups):
            set_rates(optimizer, change["rates"])
        self.repeated()

    def _go_on(self) -> None:
        """The run goes on after a way back. A cell that was put in behind that place is still in use, which
        is a change of the line that the run is on now."""
        place, self._went_back = self._went_back, None
        if place is None or not self._first:
            return
        with self._lock:
            on = [each for each in self._in_order([("", _FAR, None)]) if place_of(each) <= place]
            then, now = self.code.in_force(on), self.code.now
            cells = [
                name for name, one, other in zip(Code._fields, then, now, strict=True) if one is not other
            ]
            if not cells:
                return
            known = latest({**self._first, "changes": on})
            change = self._change(f"goes on with the present {' and '.join(cells)}", place)
            change["changed"] = differences(known, code_in(self._quick()))
            self._changes = [*self._changes, change][-MOST_CHANGES:]
            self.code.put_in(change["id"])
            self._text = ""

    def _differing(self, now: Told) -> Told:
        """Which code of now is not that by which earlier processes trained, nor can be put back for them."""
        found: Told = {}
        for then in (code_in(self._first), self._code_before) if self._code_before else ():
            back = {name for name in Code._fields if self.code.has(then, name)}
            pairs = differences(then, now).items()
            found |= {name: pair for name, pair in pairs if field_of(name) not in back}
        return found

    # Gathering ---------------------------------------------------------------------------------------

    def _before(self) -> str:
        """The recipe of the run that goes on here."""
        try:
            told = read_header(self._file).get("recipe")
        except (OSError, DamagedError):
            return self.found() or ""
        return told if isinstance(told, str) and told else self.found() or "{}"

    def _begin(self, before: str) -> None:
        now = self._quick()
        with self._lock:
            told = read(before)
            self._goes_on = bool(before)
            self._first, self._known = told or now, latest(told or now)
            self.code.goes_on(members_of(told), told.get("signed"))
            self._code_before = {name: each for name, each in self._known.items() if told and is_code(name)}
            self._changes, self._cells = list(told.get("changes", ())), list(told.get("cells", ()))
            if before:
                lacking = "" if told else "; the version that began it kept no recipe"
                self._note(f"resumed{lacking}", now)
                self._changes[-1]["resumed"] = True
            self._open = self._changes[-1] if before else None
            self._text = ""
        self._gather(now)

    def _quick(self) -> Told:
        """What takes no time to find."""
        settings, optimizer, schedule = self.settings, self._update.optimizer, self._update.schedule
        given = {
            split: loader_of(each, settings.batch_size, split == "train")
            for split, each in self.given().items()
        }
        told = {
            "config": {name: value for each in settings.configs for name, value in own_values(each).items()},
            "model": {
                "class": type(self.model).__qualname__,
                "parameters": sum(each.numel() for each in self.model.parameters()),
                **module_options(self.model),
            },
            **optimizers(optimizer, schedule),
            "schedule": schedule_of(schedule),
            "loss": None if settings.loss is None else function_of(settings.loss),
            "epochs": self._num_epochs(),
            "batch_size": given.get("train", {}).get("batch_size", settings.batch_size),
            "seed": settings.seed,
            "accumulation": settings.window,
            "clip_norm": settings.clip_norm,
            "clip_value": settings.clip_value,
            "precision": str(settings.precision),
            "ema": settings.ema_decay,
            "early_stopping": plain(settings.early_stopping),
            "loaders": given,
            **environment.threads_and_flags(),
        }
        if self._update.split > 1:
            told[SPLIT] = self._update.split
        steps = {"train_step": settings.train_step, "valid_step": settings.valid_step}
        told |= {name: function_of(each) for name, each in steps.items() if each is not None}
        if settings.records_source:
            acts = {f"on {when}": function for when, function in settings.acts}
            texts = {
                name: source_text.text_of(each)
                for name, each in {**steps, "loss": settings.loss, **acts}.items()
                if each is not None
            }
            told["source"] = {name: text for name, text in texts.items() if text is not None}
        return told

    def _gather(self, now: Told) -> None:
        """Find what takes longer in a thread: a run's start must not wait for it."""
        given = dict(self.given())
        self._seen = given
        self._wait()
        gathering = threading.Thread(
            target=self._find_late,
            args=(given, source_text.kinds_in(self.model), now["loaders"]),
            name="notebook_learner recipe",
            daemon=True,
        )
        gathering.start()
        self._gathering = gathering  # after it was started: the writer thread may wait for it at once

    def _wait(self) -> None:
        if self._gathering is not None:
            self._gathering.join(_LONGEST_WAIT)

    def _find_late(self, given: Mapping[Split, Any], kinds: Sequence[type], loaders: Told) -> None:
        late: Told = {"loaders": loaders}
        with suppress(Exception):  # of the user's data, whose classes may do anything
            late["data"] = {split: fingerprint(each) for split, each in given.items()}
        with suppress(Exception):
            late |= {"versions": environment.versions(), "hardware": environment.hardware()}
            late["commit"] = git_commit()
        self._add(late)
        if self.settings.records_source:
            with suppress(Exception):
                self._add({"source": {"model": source_text.classes_of(kinds)}})
                self._add({"diff": environment.changes_in()})  # last: git may take seconds

    def _add(self, late: Told) -> None:
        with self._lock:
            found = flat({name: each for name, each in late.items() if name not in UNTOLD})
            if self._open is None:
                self._first = _merged(self._first, late)
            else:
                self._open["changed"] |= differences(self._known, found)
            self._known |= found
            self._text = ""

    def _note(self, text: str, now: Told) -> None:
        found = members_of(now)
        change = self._change(text, self._place())
        change["changed"] = differences(self._known, found)
        if self.touched:
            change["state"], self.touched = [*self.touched], ()
        self._known |= found
        self._changes = [*self._changes, change][-MOST_CHANGES:]
        self.code.note(change["id"])
        self._text = ""

    def _change(self, text: str, at: Position) -> Told:
        return {
            "id": uuid4().hex[:12],
            "text": text,
            "iteration": at.iteration,
            "epoch": at.epoch,
            "split": at.split,
            "step": at.step,
            "when": time.time(),
            "rates": [float(rate) for rate in rates_of(self._update.optimizer)],
        }

    def _is_new_data(self) -> bool:
        given = self.given()
        return given.keys() != self._seen.keys() or any(
            each is not self._seen[split] for split, each in given.items()
        )

    def _own_cells(self) -> tuple[str, ...]:
        if not self.settings.records_source:
            return ()
        cells = source_text.cells_since(self.settings.first_cell)
        return tuple(cell for cell in cells if cell not in self._cells)


_CAUSES = (
    "source",
    "versions",
    "data",
    "loss",
    "train_step",
    "batch_size",
    "threads",
    "deterministic",
    "matmul_precision",
    "precision",
    "accumulation",
    "model",
)


def _by_hand(change: Told) -> str:
    return f"by hand at step {change['iteration']}"


def _as_cause(name: str, pair: list[Any], when: str) -> str:
    before, now = pair
    if name.startswith(("source.", "data.")):
        return f"another {name} {when}"
    return f"{name} {before} became {now} {when}"


def _merged(told: Told, more: Told) -> Told:
    both = {**told, **more}
    for name in told.keys() & more.keys():
        if isinstance(told[name], dict) and isinstance(more[name], dict):
            both[name] = _merged(told[name], more[name])
    return both
