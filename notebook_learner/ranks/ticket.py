"""What goes over to the process: all that a learner was made of, and the process around it.

The state does not: it goes through a checkpoint in the run's directory, where it also is when a process is
killed. Nothing of this is ever written to a disk, as it is a pickle; it travels through a pipe.
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
    """What the process is like before anything of the user's comes to it. Plain values: it cannot import
    the user's modules yet."""

    path: list[str]
    folder: str
    python_path: str | None
    """The variable of that name, which was changed for the process to find this package."""
    ambient: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ticket:
    """What the learner is made of."""

    settings: Settings
    model: Any
    optimizer: Any
    scheduler: Any
    data: Mapping[Any, Any]
    """The data of each split, as it was given."""
    num_epochs: int
    conditions: list[tuple[str, Any, bool, bool]]
    """Its breakpoints: name, condition, whether once, whether on."""
    measured: Record | None
    """What was measured so far, where the directory's logs do not tell."""


def surroundings() -> Surroundings:
    """Of this process."""
    return Surroundings(list(sys.path), os.getcwd(), os.environ.get("PYTHONPATH"), ambient())


def packed(learner: Any) -> bytes:
    """A learner as another process makes it again.

    In one piece: what the model, the steps and the loaders have in common they have in common there, too.

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
    from .shipping import pack  # what it needs may not be installed; that was asked before

    names = {id(learner): THE_LEARNER}
    try:
        return pack(ticket, names, stays=True)
    except Exception as refused:
        culprits = _culprits(ticket, lambda part: pack(part, names))
        raise ConfigurationError(culprits or [_told("it", refused)], CANNOT) from refused


def _settings(settings: Settings) -> Settings:
    """The same, but for what says how to begin, and for a display that belongs to this page."""
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
    """The parts that cannot be pickled by themselves."""
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
