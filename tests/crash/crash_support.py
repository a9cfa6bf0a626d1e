"""A short training that writes to its disk all the time, a hand on each call to the file system, and what
has to hold in its directory after a death."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from exactness import BATCH, Noisy, differences, everything, logs
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader

from notebook_learner import Learner, LearnerBuilder
from notebook_learner.artifacts import Artifacts
from notebook_learner.checkpoint.folder import CheckpointFolder
from notebook_learner.checkpoint.strategy import KeepLast
from notebook_learner.errors import StateError
from notebook_learner.event import Event, Notice
from notebook_learner.metric import Accuracy, Loss
from notebook_learner.store import files
from notebook_learner.store.background import Background

BEFORE_SAVE = 3
"""Steps before a person saves."""


class Notices:
    """A renderer that keeps what a person is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def handle(self, event: Event, /) -> None:
        if isinstance(event, Notice):
            self.texts.append(event.text)


class Training:
    """A way to train: so many epochs of so many batches, saved every other step and at each epoch's end;
    only the newest is kept, so that something is deleted each time."""

    def __init__(self, epochs: int = 4, batches: int = 7) -> None:
        self.epochs = epochs
        self.batches = batches

    def learner(
        self,
        directory: Path,
        checkpoint: str | None = None,
        renderer: Any = "silent",
        configure: Callable[[LearnerBuilder], object] = lambda builder: builder,
    ) -> Learner:
        """A fresh learner, its model and the global generators at fixed seeds."""
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)
        model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8, momentum=0.3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        updates = self.epochs * -(-self.batches // 2)
        builder = (
            LearnerBuilder(directory)
            .metrics(Loss(), Accuracy())
            .loss(F.cross_entropy)
            .num_epochs(self.epochs)
            .grads_accumulation(2)
            .seed(7)
            .renderer(renderer)
            .with_application_logger(False)
            .with_file_checkpointer()
            .with_checkpointing_strategy(KeepLast(1))
            .autosave(2)
        )
        if checkpoint is not None:
            builder.checkpoint(checkpoint)
        configure(builder)
        return builder.build(
            model,
            optimizer,
            OneCycleLR(optimizer, max_lr=0.1, total_steps=updates),
            DataLoader(Noisy(self.batches * BATCH - 2, 1), batch_size=BATCH, shuffle=True),
            DataLoader(Noisy(2 * BATCH - 1, 2), batch_size=BATCH),
        )

    def resumed(self, directory: Path, renderer: Any = "silent") -> Learner:
        """Goes on from the latest checkpoint; begins anew where there is none."""
        try:
            CheckpointFolder(directory / "checkpoint").find("latest")
        except StateError:
            return self.learner(directory, renderer=renderer)
        return self.learner(directory, "latest", renderer)

    def straight(self, directory: Path) -> End:
        """The run that nothing happens to."""
        learner = self.learner(directory)
        learner.fit()
        return end_of(learner, directory)


End = tuple[dict[str, Any], dict[str, bytes]]
"""The whole final state, and every log."""


def end_of(learner: Learner, directory: Path) -> End:
    """Where a learner stands, and what it has logged."""
    return everything(learner), logs(directory)


def unlike(learner: Learner, directory: Path, straight: End) -> list[str]:
    """Where a finished learner is not, to the bit, what the straight run ended with."""
    final, written = straight
    found = list(differences(everything(learner), final))
    mine = logs(directory)
    found += [f"log {name}" for name in sorted(mine.keys() | written) if mine.get(name) != written.get(name)]
    return found


def background_of(learner: Learner) -> Background:
    """What writes while a learner trains."""
    return learner._replica.saving.store.keeper.background  # type: ignore[union-attr]


def wrong_at_the_end(learner: Learner, directory: Path, straight: End) -> list[str]:
    """What is wrong with a finished learner and its directory."""
    background_of(learner).wait()
    found = unlike(learner, directory, straight)
    found += [f"left over: {path.name}" for path in CheckpointFolder(directory / "checkpoint").leftovers()]
    found += Artifacts(directory).verify().problems
    read_by_h5py(directory / "artifacts.h5")
    return found


def read_by_h5py(path: Path) -> None:
    """Open a file as a stranger does, and read every dataset of it."""
    with h5py.File(path) as file:
        file.visititems(lambda name, item: item[()] if isinstance(item, h5py.Dataset) else None)


def wrong_with_checkpoints(directory: Path, needed: Iterable[str]) -> list[str]:
    """Which needed checkpoints are lost, and which that claim to be whole are not."""
    known: set[str] = set()
    found: list[str] = []
    for name in ("checkpoint", "start"):
        folder = CheckpointFolder(directory / name)
        for info in folder.list():
            known.add(named(name, info.label))
            found += folder.verify(info)
    return [*(f"checkpoint {label} is lost" for label in needed if label not in known), *found]


def named(folder: str, label: str) -> str:
    """What a ledger calls a checkpoint: the state that a run begins with lies in a folder of its own."""
    return label if folder == "checkpoint" else f"{folder}/{label}"


class Ledger:
    """Which checkpoints were announced, and which were let go since. `tell` hears of it first."""

    def __init__(self, tell: Callable[[str, str], None] = lambda verb, label: None) -> None:
        self.tell = tell
        self.lines: list[tuple[str, str]] = []
        self._commit, self._delete = CheckpointFolder.commit, CheckpointFolder.delete

    def __enter__(self) -> Ledger:
        ledger = self

        def commit(self: Any, label: str, *rest: Any) -> Any:
            info = ledger._commit(self, label, *rest)
            ledger.note("saved", named(self.path.name, label))
            return info

        def delete(self: Any, info: Any) -> None:
            ledger.note("let go", named(self.path.name, info.label))
            ledger._delete(self, info)

        CheckpointFolder.commit, CheckpointFolder.delete = commit, delete  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        CheckpointFolder.commit = self._commit  # type: ignore[method-assign]
        CheckpointFolder.delete = self._delete  # type: ignore[method-assign]

    def note(self, verb: str, label: str) -> None:
        self.tell(verb, label)
        self.lines.append((verb, label))

    @property
    def standing(self) -> list[str]:
        return standing(self.lines)


def standing(lines: Iterable[tuple[str, str]]) -> list[str]:
    """The announced checkpoints that were not deleted on purpose."""
    found: dict[str, None] = {}
    for verb, label in lines:
        if verb == "saved":
            found[label] = None
        else:
            found.pop(label, None)
    return list(found)


Call = Callable[..., Any]
Hand = Callable[[int, str, Call, tuple[Any, ...], dict[str, Any]], Any]

FUNCTIONS = [
    name
    for name, value in vars(files).items()
    if callable(value)
    and not isinstance(value, type)
    and not name.startswith("_")
    and getattr(value, "__module__", "") == files.__name__
]
"""Every function of the store that reaches the file system."""

IN_A_FOLDER = {"names": "names_in", "stats": "stats_in", "open_to_read": "open_to_read"}
"""Every method of `files.Folder` that does, and what a hand knows it by."""


def folder_opened_by(folder: files.Folder) -> Path | None:
    """Where a directory lies that is held open; None where there is none."""
    above = folder._above
    return None if above is None else Path(os.readlink(f"/proc/self/fd/{above.number}"))


class Calls:
    """While it is entered, a hand does each call of the store to the file system in its place; it is given
    the call's number, its name, and the function with its arguments."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.names: list[str] = []
        self._real = {name: getattr(files, name) for name in FUNCTIONS}
        self._methods = {name: getattr(files.Folder, name) for name in IN_A_FOLDER}
        self._lock = threading.RLock()  # as that of `disk_model.Recording`

    def __enter__(self) -> Calls:
        for name, real in self._real.items():
            setattr(files, name, self._handed(name, real))
        for name, real in self._methods.items():
            setattr(files.Folder, name, self._handed_in_a_folder(name, real))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, real in self._real.items():
            setattr(files, name, real)
        for name, real in self._methods.items():
            setattr(files.Folder, name, real)

    def _handed_in_a_folder(self, name: str, real: Call) -> Call:
        """The hand is given a path first, as with the functions."""

        def method(folder: files.Folder, *given: Any) -> Any:
            where = folder_opened_by(folder)
            if where is None:
                return real(folder, *given)
            if name == "open_to_read":
                return self._handed(name, lambda path: real(folder, path))(*given)
            return self._handed(IN_A_FOLDER[name], lambda _, *rest: real(folder, *rest))(where, *given)

        return method

    def _handed(self, name: str, real: Call) -> Call:
        def call(*given: Any, **named: Any) -> Any:
            with self._lock:
                number = len(self.names)
                self.names.append(name)
            return self.hand(number, name, real, given, named)

        return call


def done(number: int, name: str, real: Call, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The hand that does what it is asked."""
    return real(*given, **named)


def half_written(name: str, real: Call, given: tuple[Any, ...]) -> None:
    """The first half of what a call was to write, as a death in the middle of it leaves."""
    if name == "append":
        real(given[0], bytes(given[1])[: len(given[1]) // 2])
    elif name == "write_at":
        data = b"".join(bytes(buffer) for buffer in given[1])
        real(given[0], [data[: len(data) // 2]], given[2])


def train_and_save(learner: Learner) -> None:
    """What a person does: some steps, a checkpoint, the same one again (it takes the first one's place),
    then on to the end."""
    learner.step(BEFORE_SAVE)
    learner.save()
    learner.save()
    learner.fit()
