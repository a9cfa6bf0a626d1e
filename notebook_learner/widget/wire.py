"""What goes between the kernel and the page: requests out of a fixed list, and messages with numbers beside.

A page is not trusted: whoever can send a message to the kernel could run code there anyway, but a mistake of
a page must not become a mistake of the training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

MOST_STEPS = 1_000_000
"""A page asks for no more at once."""
_LONGEST = 200
_LAST = 2**53 - 1
"""A page counts no further: its numbers are floats."""


class WireError(ValueError):
    """A message that no page of ours sends."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a page asks for."""

    cmd: str
    args: Mapping[str, Any] = field(default_factory=dict)
    seq: int = 0
    client: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """What a page is told: JSON, and arrays of numbers beside it."""

    content: Json
    buffers: tuple[bytes, ...] = ()


def parse(content: object) -> Request:
    """A request of a page, checked.

    >>> parse({"cmd": "step", "args": {"n": 10}, "seq": 3, "client": "a1"})
    Request(cmd='step', args={'n': 10}, seq=3, client='a1')
    >>> parse({"cmd": "eval", "args": {}})
    Traceback (most recent call last):
        ...
    notebook_learner.widget.wire.WireError: there is no request 'eval'
    """
    if not isinstance(content, dict):
        raise WireError("a request is an object")
    cmd, args = content.get("cmd"), content.get("args", {})
    if not isinstance(cmd, str) or cmd not in _ARGUMENTS:
        raise WireError(f"there is no request {str(cmd)[:40]!r}")
    expected = _ARGUMENTS[cmd]
    if not isinstance(args, dict) or set(args) != set(expected):
        raise WireError(f"{cmd} takes {', '.join(expected) or 'no arguments'}")
    for name, fits in expected.items():
        if not fits(args[name]):
            raise WireError(f"{name} of {cmd} is nothing that it can be")
    seq, client = content.get("seq", 0), content.get("client", "")
    if type(seq) is not int or not isinstance(client, str) or len(client) > _LONGEST:
        raise WireError("a request has a number and a sender")
    return Request(cmd, args, seq, client)


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_STEPS


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LAST


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_ARGUMENTS: dict[str, dict[str, Callable[[object], bool]]] = {
    "hello": {},
    "resync": {},
    "look": {"visible": _is_flag},
    "run": {},
    "pause": {},
    "stop": {},
    "step": {"n": _is_count},
    "step_epoch": {},
    "rewind": {"n": _is_count},
    "save": {},
    "restore": {"label": _is_name},
    "epochs": {"n": _is_count},
    "breakpoint": {"name": _is_name, "on": _is_flag},
    "inspect": {"rank": _is_whole},
    "rewind_to": {"step": _is_whole},
}
"""Every request with its arguments and what each of them may be."""
