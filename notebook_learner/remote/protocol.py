"""The messages on the socket: one line of JSON in each direction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..steering.command import Answer, Command, CommandError, checked

LONGEST = 4096
"""The largest command in bytes. The longest sensible one, a rate for each of a hundred groups, has 2000."""


def line_of(said: Command | Answer) -> bytes:
    """Encode a command or an answer for the socket.

    >>> line_of(Command("step", {"n": 3}))
    b'{"cmd": "step", "args": {"n": 3}}\\n'
    """
    if isinstance(said, Command):
        return _line({"cmd": said.cmd, "args": dict(said.args)})
    return _line({"ok": said.ok, "text": said.text, "facts": dict(said.facts)})


def read_command(line: bytes) -> Command:
    """Decode a command from the socket.

    Raises:
        CommandError: the line is not a command of the list.
    """
    content = _content(line)
    return checked(content.get("cmd"), content.get("args", {}))


def read_answer(line: bytes) -> Answer:
    """Decode an answer from the socket.

    Raises:
        CommandError: the line is not an answer.
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
