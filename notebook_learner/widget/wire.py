"""The requests of a page to the kernel, and the kernel's messages with arrays of numbers to the page.

A page is not trusted. A sender of messages to the kernel could run code there anyway, but an error of a page
must not become an error of the training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..steering.command import FLAG, NAME, Argument, Command, CommandError, checked, mistake_in

Json = dict[str, Any]

_LONGEST = 200
"""Characters of a sender's name."""
_OF_PAGES: dict[str, dict[str, Argument]] = {
    "hello": {},
    "resync": {},
    "look": {"visible": FLAG},
    "saving": {},
    "overlay": {"run": NAME, "shown": FLAG},
}
"""A page's requests for itself. All other requests are commands that steer the run."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a page."""

    command: Command
    seq: int = 0
    client: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to a page: JSON, and arrays of numbers."""

    content: Json
    buffers: tuple[bytes, ...] = ()


def parse(content: object) -> Request:
    """Check a message of a page and return it as a request.

    >>> parse({"cmd": "step", "args": {"n": 10}, "seq": 3, "client": "a1"})
    Request(command=Command(cmd='step', args={'n': 10}), seq=3, client='a1')
    >>> parse({"cmd": "look", "args": {}})
    Traceback (most recent call last):
        ...
    notebook_learner.steering.command.CommandError: look takes visible
    """
    if not isinstance(content, dict):
        raise CommandError("a request is an object")
    command = _command_of(content.get("cmd"), content.get("args", {}))
    seq, client = content.get("seq", 0), content.get("client", "")
    if type(seq) is not int or not isinstance(client, str) or len(client) > _LONGEST:
        raise CommandError("a request has a number and a sender")
    return Request(command, seq, client)


def _command_of(cmd: object, args: object) -> Command:
    if not isinstance(cmd, str) or cmd not in _OF_PAGES:
        return checked(cmd, args)
    if not isinstance(args, dict):
        raise CommandError(f"the arguments of {cmd} are an object")
    if mistake := mistake_in(cmd, args, _OF_PAGES[cmd]):
        raise CommandError(mistake)
    return Command(cmd, args)
