"""`experiment.log`: what happened to the run, one line per event, with time and level."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

from ..event.values import (
    CheckpointSaved,
    EpochEnded,
    Evaluated,
    Event,
    Level,
    Marked,
    Notice,
    Rewound,
    RunOpened,
    SplitEnded,
    SplitStarted,
    StatusChanged,
)
from ..store.appender import LineAppender
from ..store.log_lines import format_number, format_text
from .file import evaluated_text

_ACTIVE = frozenset(";&|<>$`\\\"'#")
"""Characters that a shell acts on outside of quotes."""
_QUOTE = "'\"'\"'"
"""How to write a quote inside quotes."""


def quoted(name: str) -> str:
    """A name; in shell quotes if a shell would act on one of its characters.

    >>> quoted("runs/digits"), quoted("Top-K Accuracy @ TopK(5)")
    ('runs/digits', 'Top-K Accuracy @ TopK(5)')
    >>> print(quoted("run;touch pwned"), quoted("it's"))
    'run;touch pwned' 'it'"'"'s'
    """
    name = visible(name)
    if _ACTIVE.isdisjoint(name):
        return name
    inside = name.replace("'", _QUOTE)
    return f"'{inside}'"


def unquoted(text: str) -> str:
    """The name, from the text that `quoted` wrote.

    >>> unquoted(quoted("it's")), unquoted("clean")
    ("it's", 'clean')
    """
    inside = len(text) > 1 and text[0] == text[-1] == "'"
    return text[1:-1].replace(_QUOTE, "'") if inside else text


def harmless(text: str, *, prose: bool = False) -> str:
    r"""A sentence, with a backslash before each character that a shell would act on; paired quotes stay.

    In `prose` the names already have quotes, as `repr` writes them, and a semicolon before a space belongs
    to the sentence.

    >>> print(harmless("'a;b' held a run, which is now in 'a;b-1'"))
    'a;b' held a run, which is now in 'a;b-1'
    >>> print(harmless("the run's directory is a;b"), harmless('"$(x)"'))
    the run\'s directory is a\;b "\$(x)"
    >>> print(harmless("'a; b' held a run; it's gone", prose=True))
    'a; b' held a run; it\'s gone
    """
    text = visible(text)
    if _ACTIVE.isdisjoint(text):
        return text
    written: list[str] = []
    place = 0
    while place < len(text):
        character = text[place]
        end = _end_of_quotes(text, place) if character in "'\"" else -1
        own = prose and character == ";" and text[place + 1 : place + 2] == " "
        if end >= 0:
            inside = text[place:end]
            written.append(inside if character == "'" else _escaped(inside, "$`\\"))
            written.append(character)
            place = end
        elif own and "\\'" not in text:  # otherwise it is a name that holds both kinds of quotes
            written.append(character)
        else:
            written.append(_escaped(character, _ACTIVE))
        place += 1
    return "".join(written)


def visible(text: str) -> str:
    r"""A text in one line, with an escape for each character that a terminal would act on or not show.

    >>> print(visible("one\ntwo"), visible("\x1b[2J"))
    one two \x1b[2J
    """
    text = " ".join(text.splitlines())
    if text.isprintable():
        return text
    shown = (each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return "".join(shown)


def _end_of_quotes(text: str, start: int) -> int:
    """The index where the quotes that start there end; -1 if they do not end, as in "the run's"."""
    if start and text[start - 1].isalnum():
        return -1
    return text.find(text[start], start + 1)


def _escaped(text: str, active: frozenset[str] | str) -> str:
    return "".join(f"\\{each}" if each in active else each for each in text)


_SHORT: Mapping[Level, str] = {"info": "INFO", "warning": "WARN", "error": "ERROR"}


class ApplicationLogger:
    """Writes one line per event to a file, or to a `logging.Logger`.

        2026-11-21T05:47:00.123Z  INFO  epoch 1, train: started, 240 batches

    The file is appended to, and belongs to this object only: two runs in one process write two files.
    Metric values are not written here; they have their own logs.
    """

    def __init__(self, target: str | os.PathLike[str] | logging.Logger) -> None:
        self._logger = target if isinstance(target, logging.Logger) else None
        self._file = None if isinstance(target, logging.Logger) else LineAppender(Path(target))

    def handle(self, event: Event, /) -> None:
        """Take one event."""
        line = describe(event)
        if line is None:
            return
        level, text = line
        text = format_text(text)
        if self._logger is not None:
            self._logger.log(getattr(logging, level.upper()), "%s", text.rstrip("\n"))
        if self._file is not None:
            self._file.add(f"{_now()}  {_SHORT[level]:<5} {text}", 1)
            self._file.write_out()

    def flush(self) -> None:
        """Write the lines that an earlier error kept back. Raises OSError while the cause remains."""
        if self._file is not None:
            self._file.write_out()

    def close(self) -> None:
        """Write the waiting lines and close the file. A later event opens it again."""
        if self._file is not None:
            try:
                self._file.write_out()
            finally:
                self._file.close()

    def __repr__(self) -> str:
        target = self._logger if self._file is None else os.fspath(self._file.path)
        return f"ApplicationLogger({target!r})"


def describe(event: Event) -> tuple[Level, str] | None:
    """The text of an event and its level; None for events that get no line.

    >>> describe(SplitStarted(1, "train", 240, 10))
    ('info', 'epoch 1, train: started, 240 batches')
    """
    if isinstance(event, SplitStarted):
        length = "of unknown length" if event.total is None else f"{event.total} batches"
        return "info", f"epoch {event.epoch}, {event.split}: started, {length}"
    if isinstance(event, SplitEnded):
        head = f"epoch {event.epoch}, {event.split}: ended after {event.steps} steps"
        return "info", "; ".join([head, *_finals(event.finals)])
    if isinstance(event, EpochEnded):
        return "info", f"epoch {event.epoch} of {event.num_epochs}: ended"
    if isinstance(event, StatusChanged):
        of = "" if event.total is None else f" of {event.total}"
        place = f"epoch {event.epoch}, {event.split}, step {event.step}{of}"
        return "error" if event.status == "failed" else "info", _because(
            f"{event.status} at {place}", event.reason
        )
    if isinstance(event, Rewound):
        place = f"epoch {event.epoch}, {event.split}, step {event.step}"
        return "info", _because(f"rewound to {place}", event.reason)
    if isinstance(event, Marked):
        place = f"epoch {event.epoch}, {event.split}, step {event.step}"
        return "info", _because(f"{event.kind} at {place}", event.text)
    if isinstance(event, Evaluated):
        place = f"epoch {event.epoch}, {event.split}, step {event.step}"
        return "info", f"evaluated at {place}: {evaluated_text(event, quoted)}"
    if isinstance(event, CheckpointSaved):
        return "info", f"checkpoint {event.label} saved, {event.size} bytes"
    if isinstance(event, Notice):
        return event.level, harmless(event.text, prose=True)
    if isinstance(event, RunOpened):
        return "info", _opening(event)
    return None


def _opening(event: RunOpened) -> str:
    parts = [f"run opened in {quoted(event.directory)}"]
    parts.append(f"{quoted(event.model)} with {event.parameters} parameters")
    parts.append(f"{event.num_epochs} epochs")
    for split in ("train", "valid"):
        names = [quoted(info.name) for info in event.metrics if info.split == split]
        if names:
            parts.append(f"{split} metrics: {', '.join(names)}")
    parts += [f"{name}: {harmless(value)}" for name, value in event.settings.items()]
    return "; ".join(parts)


def _finals(finals: Mapping[str, float]) -> list[str]:
    told = ", ".join(f"{quoted(name)} {format_number(value)}" for name, value in finals.items())
    return [told] if finals else []


def _because(what: str, reason: str) -> str:
    return f"{what}: {harmless(reason)}" if reason else what


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
