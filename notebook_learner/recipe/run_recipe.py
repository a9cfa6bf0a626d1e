"""The recipe of one run: gathered when it begins, compared when it goes on, and kept up to date with what is
changed by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..artifacts.index import read_header
from ..artifacts.recorded_recipe import RecordedRecipe, flat
from ..artifacts.run_info import git_commit
from ..errors import DamagedError
from ..event.position import Position
from ..event.values import Event, Marked, Rewound, RunOpened, Split, SplitStarted
from ..store.json_text import to_text
from . import environment, source_text
from .data_fingerprint import fingerprint, loader_of
from .hyper_parameters import function_of, module_options, optimizers, schedule_of
from .plain_values import plain

MOST_CHANGES = 256
"""The latest changes that are kept."""
_LONGEST_WAIT = 5.0
"""Seconds that a file waits for what the thread gathers: versions, work tree, fingerprint."""
UNTOLD = ("cells", "changes", "hardware")
"""What may differ from one process to the next without being a change of the run."""

Told = dict[str, Any]


class RunRecipe:
    """What made a run, and what was changed since.

    Args:
        settings: the builder's options, as they are now.
        model: the model.
        in_use: returns the optimizer and the schedule.
        place: returns where the run stands.
        num_epochs: returns the number of epochs.
        file: the run's `artifacts.h5`, which has the recipe of a run that goes on.
    """

    def __init__(
        self,
        settings: Any,
        model: nn.Module,
        in_use: Callable[[], tuple[Optimizer, Any]],
        place: Callable[[], Position],
        num_epochs: Callable[[], int],
        file: Path,
    ) -> None:
        self.settings, self.model = settings, model
        self.given: Callable[[], Mapping[Split, Any]] = dict
        """Returns the data of each split; set when the learner has loaders."""
        self.found: Callable[[], str | None] = lambda: None
        """Returns the recipe in the checkpoint that was loaded last."""
        self._in_use, self._place, self._num_epochs = in_use, place, num_epochs
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
        elif isinstance(event, SplitStarted):
            if self._fresh and self._goes_on and (event.epoch, event.split) == (1, "train"):
                self._begin("")  # another run in this directory
            self._fresh = False
        elif isinstance(event, Rewound):
            self._fresh = False
        elif isinstance(event, Marked) and event.kind == "edited":
            with self._lock:
                self._note(event.text, self._quick())

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
        if wait and self._gathering is not None:
            self._gathering.join(_LONGEST_WAIT)
        with self._lock:
            if not self._first:
                return ""
            cells = self._own_cells()
            if not self._text or cells != self._text_cells:
                self._text_cells = cells
                whole = {**self._first, "cells": [*self._cells, *cells], "changes": self._changes}
                self._text = to_text(whole)
            return self._text

    def members(self) -> Told:
        """The recipe as it would be now, by dotted names, with the fingerprint of the data."""
        told = self._quick()
        with suppress(Exception):  # of the user's data, whose classes may do anything
            told["data"] = {split: fingerprint(each) for split, each in self.given().items()}
        return _flat(told)

    def of_checkpoint(self) -> Told:
        """The recipe that the checkpoint has which was loaded last, by dotted names."""
        return _latest(read(self.found() or ""))

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
            self._first, self._known = told or now, _latest(told or now)
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
        settings, (optimizer, schedule) = self.settings, self._in_use()
        given = {
            split: loader_of(each, settings.batch_size, split == "train")
            for split, each in self.given().items()
        }
        told = {
            "config": settings.config,
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
        if self._gathering is not None:
            self._gathering.join(_LONGEST_WAIT)
        self._gathering = threading.Thread(
            target=self._find_late, args=(given, now), name="notebook_learner recipe", daemon=True
        )
        self._gathering.start()

    def _find_late(self, given: Mapping[Split, Any], now: Told) -> None:
        late: Told = {"loaders": now["loaders"]}
        with suppress(Exception):  # of the user's data, whose classes may do anything
            late["data"] = {split: fingerprint(each) for split, each in given.items()}
        with suppress(Exception):
            late |= {"versions": environment.versions(), "hardware": environment.hardware()}
            late["commit"] = git_commit()
        if self.settings.records_source:
            with suppress(Exception):
                late["diff"] = environment.changes_in()
                late["source"] = {"model": source_text.classes_of(self.model)}
        with self._lock:
            found = flat({name: each for name, each in late.items() if name not in UNTOLD})
            if self._open is None:
                self._first = _merged(self._first, late)
            else:
                self._open["changed"] |= _differences(self._known, found)
            self._known |= found
            self._text = ""

    def _note(self, text: str, now: Told) -> None:
        found = _flat(now)
        at = self._place()
        change = {
            "text": text,
            "iteration": at.iteration,
            "epoch": at.epoch,
            "split": at.split,
            "step": at.step,
            "when": round(time.time(), 3),
            "changed": _differences(self._known, found),
        }
        self._known |= found
        self._changes = [*self._changes, change][-MOST_CHANGES:]
        self._text = ""

    def _is_new_data(self) -> bool:
        given = self.given()
        return given.keys() != self._seen.keys() or any(
            each is not self._seen[split] for split, each in given.items()
        )

    def _own_cells(self) -> tuple[str, ...]:
        if not self.settings.records_source:
            return ()
        return tuple(source_text.cells_since(self.settings.first_cell))


def read(text: str) -> Told:
    """A recipe from its JSON; empty if it is none."""
    told = RecordedRecipe.parse(text)
    return told if _is_sound(told) else {}


def _is_sound(told: Told) -> bool:
    changes = told.get("changes", [])
    return (
        isinstance(told.get("cells", []), list)
        and isinstance(told.get("config", {}), dict)
        and isinstance(changes, list)
        and all(isinstance(each, dict) and _are_pairs(each.get("changed", {})) for each in changes)
    )


def _are_pairs(changed: Any) -> bool:
    return isinstance(changed, dict) and all(
        isinstance(pair, list) and len(pair) == 2 for pair in changed.values()
    )


def _flat(told: Told) -> Told:
    return flat({name: each for name, each in told.items() if name not in UNTOLD})


def _latest(told: Told) -> Told:
    """The members as the last change left them."""
    found = _flat(told)
    for change in told.get("changes", ()):
        found |= {name: pair[1] for name, pair in change.get("changed", {}).items()}
    return found


def _differences(before: Told, now: Told) -> Told:
    """The members that differ, each with its former and its present value."""
    return {
        name: [before.get(name), value]
        for name, value in now.items()
        if before.get(name) != value and not (name.startswith("versions.") and name not in before)
    }


def _merged(told: Told, more: Told) -> Told:
    both = {**told, **more}
    for name in told.keys() & more.keys():
        if isinstance(told[name], dict) and isinstance(more[name], dict):
            both[name] = _merged(told[name], more[name])
    return both
