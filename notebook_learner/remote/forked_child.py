"""Sockets and files that a forked child must not keep.

A loader's worker process is a fork: it inherits every socket. While it holds the listening one, a client can
connect to a run whose process was killed, and waits for an answer that never comes.
"""

from __future__ import annotations

import os
from typing import Protocol, TypeVar


class Closable(Protocol):
    """A socket, or anything else that can be closed."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

_held: set[Closable] = set()
"""Each change of this set is one call, so a fork finds it consistent without a lock."""


def held(thing: T) -> T:
    """Return a thing, and close it in every child that is forked while it is held."""
    _held.add(thing)
    return thing


def let_go(thing: Closable) -> None:
    """Close a held thing in this process."""
    _held.discard(thing)
    thing.close()


def _in_child() -> None:
    for thing in list(_held):
        thing.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
