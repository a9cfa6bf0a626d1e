"""What goes over the socket: one line of JSON each way, and requests out of a fixed list.

Whoever may connect is the user who trains, and could do anything to the process anyway. But a mistake of
theirs, or a program that was never meant to talk to us, must not become a mistake of the training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LONGEST = 4096
"""Bytes a request may have; the longest sensible one, a rate for each of a hundred groups, has 2000."""
MOST_STEPS = 1_000_000
_LARGEST = 1e30
_RATE = re.compile(r"lr(?:\[([0-9]{1,4})\])?")


class RequestError(ValueError):
    """A request that is not on the list, or not as it has to be."""


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody asks for.

    >>> print(Request("set", {"lr": 0.01}), Request("step", {"n": 3}), Request("stop"), sep=", ")
    set lr=0.01, step 3, stop
    """

    cmd: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.cmd == "set":
            return " ".join(["set", *(f"{name}={value}" for name, value in self.args.items())])
        return " ".join([self.cmd, *(str(value) for value in self.args.values())])

    def line(self) -> bytes:
        """As it goes over the socket."""
        return _line({"cmd": self.cmd, "args": dict(self.args)})


@dataclass(frozen=True, repr=False)
class Answer:
    """What came of a request: whether it was done, a line to read, and the same as values.

    >>> answer = Answer(True, "paused at epoch 2, train, step 17 of 240")
    >>> bool(answer), answer
    (True, paused at epoch 2, train, step 17 of 240)
    """

    ok: bool
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of `status`: status, epoch, split, step, total, iteration, num_epochs, rate, metrics and pid."""

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.text

    def line(self) -> bytes:
        """As it goes over the socket."""
        return _line({"ok": self.ok, "text": self.text, "facts": dict(self.facts)})


def request_of(words: Sequence[str]) -> Request:
    """A request as a person types it.

    >>> request_of(["set", "lr=1e-3", "num_epochs=20"])
    Request(cmd='set', args={'lr': 0.001, 'num_epochs': 20})
    >>> request_of(["step", "0"])
    Traceback (most recent call last):
        ...
    notebook_learner.remote.protocol.RequestError: step takes a number of steps from 1 to 1000000
    """
    cmd, *rest = words or [""]
    args: dict[str, Any] = {}
    if cmd == "set":
        args = dict(_change_of(word) for word in rest)
    elif cmd == "step" and len(rest) < 2:
        args = {"n": _number_of(rest[0]) if rest else 1}
    elif rest and cmd in _FITS:
        raise RequestError(f"{cmd} takes {'one number' if cmd == 'step' else 'nothing'} after it")
    return checked(cmd, args)


def read_request(line: bytes) -> Request:
    """A request as it came over the socket.

    Raises:
        RequestError: it is none.
    """
    content = _content(line)
    args = content.get("args", {})
    return checked(content.get("cmd"), args)


def read_answer(line: bytes) -> Answer:
    """An answer as it came over the socket.

    Raises:
        RequestError: it is none.
    """
    content = _content(line)
    ok, text, facts = content.get("ok"), content.get("text"), content.get("facts")
    if not isinstance(ok, bool) or not isinstance(text, str) or not isinstance(facts, dict):
        raise RequestError("an answer has ok, text and facts")
    return Answer(ok, text, facts)


def checked(cmd: object, args: object) -> Request:
    """A request that is on the list, with arguments that it can have."""
    if not isinstance(cmd, str) or cmd not in _FITS:
        raise RequestError(f"there is no command {str(cmd)[:40]!r}; there are {', '.join(_FITS)}")
    if not isinstance(args, dict):
        raise RequestError(f"the arguments of {cmd} are an object")
    mistake = _FITS[cmd](args)
    if mistake:
        raise RequestError(mistake)
    return Request(cmd, args)


def group_of(name: str) -> int | None:
    """The parameter group that `lr[2]` names; None for `lr`, which means all of them."""
    match = _RATE.fullmatch(name)
    assert match is not None, "only what was checked comes here"
    return None if match[1] is None else int(match[1])


# What each may be ------------------------------------------------------------------------------------


def _nothing(args: Mapping[str, Any]) -> str:
    return "it takes no arguments" if args else ""


def _steps(args: Mapping[str, Any]) -> str:
    fits = set(args) == {"n"} and _is_count(args["n"], MOST_STEPS)
    return "" if fits else f"step takes a number of steps from 1 to {MOST_STEPS}"


def _changes(args: Mapping[str, Any]) -> str:
    if not args:
        return "set needs something to set: lr=0.01, lr[1]=0.01 for one parameter group, num_epochs=20"
    for name, value in args.items():
        if _RATE.fullmatch(name):
            if type(value) not in (int, float) or not 0 <= value <= _LARGEST:
                return f"{name} is a number that is not negative, and not {str(value)[:40]!r}"
        elif name != "num_epochs":
            return f"{name[:40]!r} cannot be set; lr, lr[1] (of one parameter group) and num_epochs can"
        elif not _is_count(value, 1 << 31):
            return f"num_epochs is a whole number from 1, and not {str(value)[:40]!r}"
    return ""


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


_FITS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "status": _nothing,
    "pause": _nothing,
    "resume": _nothing,
    "step": _steps,
    "stop": _nothing,
    "save": _nothing,
    "set": _changes,
}
"""Every command, with what is wrong with its arguments."""

# Words and lines -------------------------------------------------------------------------------------


def _change_of(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals:
        raise RequestError(f"{word[:40]!r} is no name=value, such as lr=0.01")
    return name.strip(), _number_of(value.strip())


def _number_of(word: str) -> Any:
    """The number; what is none goes on as it is, and the check of its place will say so."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _content(line: bytes) -> dict[Any, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, a number of 5000 digits, a thousand brackets
        raise RequestError("this is no line of JSON") from None
    if not isinstance(content, dict):
        raise RequestError("a request and an answer are objects")
    return content


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
