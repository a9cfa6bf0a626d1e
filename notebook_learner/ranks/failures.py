"""Why a rank failed: its answer, and the user's own exception, built from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import StateError
from .rank_processes import Member
from .reduction import Severed
from .shipping import unpack


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer of a rank that failed at a command."""

    error: bytes | None
    """The exception, if it can be sent."""
    text: str
    """Its traceback on that rank."""
    severed: bool
    """Whether the failure is only a consequence of another rank that did not answer."""
    rows: Any = None
    """The measurements before the failure."""


class Lost(Severed):
    """A rank failed."""

    def __init__(self, member: Member, answer: Failed) -> None:
        super().__init__(f"rank {member.rank} failed:\n{answer.text}")
        self.member, self.answer = member, answer


def exception_of(member: Member, answer: Failed) -> BaseException:
    """The user's own exception, with a note that names the rank and holds its traceback."""
    told = f"raised on rank {member.rank} (host {member.host}, process {member.pid}), with this traceback:"
    error: BaseException | None = None
    if answer.error is not None:
        try:
            error = unpack(answer.error)
        except Exception:  # this process does not know its class
            error = None
    if error is None:
        error = StateError(f"rank {member.rank} failed")
    notes = [*getattr(error, "__notes__", ()), f"{told}\n{answer.text}"]
    setattr(error, "__notes__", notes)  # noqa: B010  (3.10 has no such attribute to check)
    return error
