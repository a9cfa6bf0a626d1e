"""A forked run: the same settings, with copies of everything that training changes."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader

from ...errors import StateError
from ...event import Split
from ...run.replica import Replica
from ...run.settings import Settings
from ...state.state import State
from ...step.optimizers import as_given
from ...step.schedule import TorchScheduler, UnderWay, scheduler_of
from ..learner import Learner


@dataclass(frozen=True)
class Origin:
    """What a learner was built from, to build another one from it."""

    settings: Settings
    model: nn.Module
    replica: Replica
    assemble: Callable[..., Learner]
    """The function that made it."""

    def fork(
        self,
        state: State,
        directory: str | os.PathLike[str],
        data: Mapping[Split, Any],
    ) -> Learner:
        """Make another learner in the same state, with its own directory. What the steps reach is copied with
        the model, and functions are bound to the copies.

        Raises:
            StateError: a part cannot be copied, or the directory holds a run.
        """
        _require_room(directory, self.settings)
        carried = self.replica.carried
        copies = self._copies(data, carried)
        model, optimizer, scheduler, loaders, changed = copies.made
        sibling = self.assemble(
            replace(self._settings_of(directory, state), **changed),
            model,
            optimizer,
            _under_way(scheduler),
            loaders.get("train"),
            loaders.get("valid"),
        )
        sibling._replica.rng.apart = True
        theirs = sibling._replica.carried
        theirs.adopt(carried, copies)
        sibling.restore(replace(state, parts=theirs.captured(state.parts, copies)))
        sibling._note_fork(self._told(state))
        return sibling

    def _copies(self, data: Mapping[Split, Any], carried: Any) -> Any:
        update = self.replica.loop.update
        scheduler = scheduler_of(update.schedule)
        mine = self.settings
        steps = {"train_step": mine.train_step, "valid_step": mine.valid_step, "loss": mine.loss}
        own = {"carried": mine.carried, "acts": mine.acts, "reshapes": self.replica.shape.written}
        things = (self.model, as_given(update.optimizer), scheduler, dict(data), {**steps, **own})
        try:  # together, so that the copied optimizer has the copied parameters
            return carried.copied(things)
        except StateError:
            raise
        except Exception as refused:
            raise StateError(_why_not_copied(data, refused)) from refused

    def _settings_of(self, directory: str | os.PathLike[str], state: State) -> Settings:
        """Copy the settings, without what belongs to one run alone: the user's own sinks and checkpointer."""
        mine = self.settings
        renderer = mine.renderer if isinstance(mine.renderer, str) else "auto"
        return replace(
            mine.of_a_copy(),
            directory=directory,
            checkpointer=None,
            loggers=[],
            renderer=renderer,
            reshaped=self.replica.shape.log,
            parent=self._told(state),
        )

    def _told(self, state: State) -> str:
        at = state.position
        return f"{os.fspath(self.settings.directory)} at {at}, training step {at.iteration}"


def _under_way(scheduler: Any) -> Any:
    if isinstance(scheduler, dict):
        return {name: _under_way(each) for name, each in scheduler.items()}
    is_function = callable(scheduler) and not isinstance(scheduler, TorchScheduler)
    return UnderWay(scheduler) if is_function else scheduler


def _require_room(directory: str | os.PathLike[str], settings: Settings) -> None:
    path = Path(directory)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StateError(
            f"fork({os.fspath(directory)!r}): this path exists and is not an empty folder; give another one"
        )
    if os.path.abspath(path) == os.path.abspath(settings.directory):
        raise StateError(f"fork({os.fspath(directory)!r}) is this run's own directory; give another one")


def _why_not_copied(data: Mapping[Split, Any], refused: Exception) -> str:
    for split, loader in data.items():
        shared = {id(loader.dataset): loader.dataset} if isinstance(loader, DataLoader) else {}
        try:
            copy.deepcopy(loader, shared)
        except Exception as why:
            return (
                f"fork(): the {split} loader ({type(loader).__name__}) cannot be copied, and two runs cannot "
                f"share one: {why}"
            )
    return (
        "fork() copies the model, the optimizer, the schedule and what the steps reach, and one of them "
        f"cannot be copied: {refused}"
    )
