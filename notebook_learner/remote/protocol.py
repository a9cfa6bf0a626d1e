"""What goes over the socket: one line of JSON each way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..steering.command import Answer, Command, CommandError, checked

LONGEST = 4096
"""Bytes a command may have; the longest sensible one, a rate for each of a hundred groups, has 2000."""


def line_of(said: Command | Answer) -> bytes:
    """A command, or the answer to one, as it goes over the socket.

    >>> line_of(Command("step", {"n": 3}))
    b'{"cmd": "step", "args": {"n": 3}}\\n'
    """
    if isinstance(said, Command):
        return _line({"cmd": said.cmd, "args": dict(said.args)})
    return _line({"ok": said.ok, "text": said.text, "facts": dict(said.facts)})


def read_command(line: bytes) -> Command:
    """A command as it came over the socket.

    Raises:
        CommandError: the line holds no command of the list.
    """
    content = _content(line)
    return checked(content.get("cmd"), content.get("args", {}))


def read_answer(line: bytes) -> Answer:
    """An answer as it came over the socket.

    Raises:
        CommandError: the line holds no answer.
    """
    content = _content(line)
    ok, text, facts = content.get("ok"), content.get("text"), content.get("facts")
    if not isinstance(ok, bool) or not isinstance(text, str) or not isinstance(facts, dict):
        raise CommandError("an answer has ok, text and facts")
    return Answer(ok, text, facts)


def _content(line: bytes) -> dict[Any, Any]:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, a number of 5000 digits, a thousand brackets
        raise CommandError("this is no line of JSON") from None
    if not isinstance(content, dict):
        raise CommandError("a command and an answer are objects")
    return content


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode() + b"\n"
