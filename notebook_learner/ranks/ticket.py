"""What the detached process gets: everything that a learner was made from, and settings of this process.

The state goes another way: through a checkpoint in the run's directory, where it stays if a process is
killed. A ticket is a pickle, so it is never written to a disk; it goes through a pipe.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..breakpoint import Breakpoints
from ..errors import ConfigurationError
from ..event import Record
from ..metric.metric_copies import own_copy
from ..run.settings import Registered, Settings
from .torch_settings import ambient

THE_LEARNER = "the learner"
CANNOT = "this run cannot be handed over"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The settings of the new process before it gets any of the user's objects. They are plain values,
    because it cannot import the user's modules yet."""

    path: list[str]
    folder: str
    python_path: str | None
    """The user's PYTHONPATH. The new process starts with another value, so that it finds this package."""
    ambient: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ticket:
    """The objects that the learner is made from."""

    settings: Settings
    model: Any
    optimizer: Any
    scheduler: Any
    data: Mapping[Any, Any]
    """The data of each split, as the user gave it."""
    num_epochs: int
    conditions: list[tuple[str, Any, bool, bool]]
    """Its breakpoints: the name, the condition, whether it stops only once, whether it is on."""
    measured: Record | None
    """The measurements so far, if the directory's logs do not hold them."""


def surroundings() -> Surroundings:
    """The surroundings of this process."""
    return Surroundings(list(sys.path), os.getcwd(), os.environ.get("PYTHONPATH"), ambient())


def packed(learner: Any) -> bytes:
    """Pickle a learner's ticket, from which another process builds the learner again.

    It is one pickle: objects that the model, the steps and the loaders share are shared there too.

    Raises:
        ConfigurationError: a part of it cannot be pickled.
    """
    origin, replica = learner._supplies.origin, learner._replica
    ticket = Ticket(
        _settings(origin.settings),
        origin.model,
        origin.optimizer,
        origin.scheduler,
        dict(learner._supplies.given()),
        learner.num_epochs,
        _conditions(learner.breakpoints),
        replica.history.snapshot() if origin.settings.loggers else None,
    )
    from .shipping import pack  # its requirements may be missing; a caller has checked that

    names = {id(learner): THE_LEARNER}
    try:
        return pack(ticket, names, stays=True)
    except Exception as refused:
        culprits = _culprits(ticket, lambda part: pack(part, names))
        raise ConfigurationError(culprits or [_told("it", refused)], CANNOT) from refused


def _settings(settings: Settings) -> Settings:
    """The settings without those that say how to begin, and without a display that belongs to this page."""
    shown = settings.renderer if settings.renderer == "silent" else "plain"
    return replace(
        settings.of_a_copy(),
        metrics=[Registered(own_copy(r.metric), r.split, r.plotted) for r in settings.registered()],
        metrics_given=True,
        renderer=shown,
        share=None,
        breakpoints=[],
        detached=True,
    )


def _conditions(breakpoints: Breakpoints) -> list[tuple[str, Any, bool, bool]]:
    return [(each.name, each.condition, each.once, each.on) for each in breakpoints]


def _culprits(ticket: Ticket, pack: Callable[[Any], object]) -> list[str]:
    """The parts of a ticket that cannot be pickled."""
    settings = ticket.settings
    parts: dict[str, Any] = {
        f"the model ({type(ticket.model).__name__})": ticket.model,
        "the schedule": ticket.scheduler,
        "the loss": settings.loss,
        "the training step": settings.train_step,
        "the validation step": settings.valid_step,
        **{f"the {split} data": loader for split, loader in ticket.data.items()},
        **{f"the metric {each.metric.name}": each.metric for each in settings.metrics},
        **{f"the logger {type(each).__name__}": each for each in settings.loggers},
        "the checkpointer": settings.checkpointer,
        **{f"the breakpoint {name}": condition for name, condition, *_ in ticket.conditions},
    }
    found = []
    for what, part in parts.items():
        try:
            pack(part)
        except Exception as refused:
            found.append(_told(what, refused))
    return found


def _told(what: str, refused: Exception) -> str:
    return (
        f"{what} cannot be sent to another process ({type(refused).__name__}: {refused}); leave out what "
        "only this one can have: open files, locks, generators, sockets"
    )
