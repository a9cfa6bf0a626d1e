"""What a forked child must not keep.

A loader's worker process is a fork: it inherits every socket. While it holds the listening one, a client
finds a run "alive" whose process was killed, and waits for an answer that nobody gives.
"""

from __future__ import annotations

import os
from typing import Protocol, TypeVar


class Closable(Protocol):
    """A socket, or anything else that can be closed."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

_held: set[Closable] = set()
"""Added to and taken from in one call each, so that a fork finds it whole without a lock."""


def held(thing: T) -> T:
    """The same, to be closed in every child that is forked meanwhile."""
    _held.add(thing)
    return thing


def let_go(thing: Closable) -> None:
    """Close it here."""
    _held.discard(thing)
    thing.close()


def _in_child() -> None:
    for thing in list(_held):
        thing.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
