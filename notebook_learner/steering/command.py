"""All commands, their arguments, and the allowed values of each argument.

Only the user who trains can send a command, and this user can do anything to the process anyway. But a
mistake of the user, or of another program, must not harm the training: an unknown command is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_STEPS = 1_000_000
_LONGEST = 200
"""The largest number of characters in a name."""
_LAST = 2**53 - 1
"""The largest integer that a page can count to: its numbers are floats."""
_LARGEST = 1e30
_OPTION = re.compile(r"(lr|momentum|weight_decay)(?:\[([0-9]{1,4})\])?")


class CommandError(ValueError):
    """The command is not on the list, or its arguments are not valid."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a user asks of the run.

    >>> print(Command("set", {"lr": 0.01}), Command("step", {"n": 3}), Command("stop"), sep=", ")
    set lr=0.01, step 3, stop
    """

    cmd: str
    args: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.cmd == "set":
            return " ".join(["set", *(f"{name}={value}" for name, value in self.args.items())])
        return " ".join([self.cmd, *(_typed(value) for value in self.args.values())])


@dataclass(frozen=True, repr=False)
class Answer:
    """The result of a command: whether it was done, a line to read, and the same as values.

    >>> answer = Answer(True, "paused at epoch 2, train, step 17 of 240")
    >>> bool(answer), answer
    (True, paused at epoch 2, train, step 17 of 240)
    """

    ok: bool
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Values of `status`: status, epoch, split, step, total, iteration, num_epochs, rate, metrics, pid."""

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.text


def checked(cmd: object, args: object) -> Command:
    """Check a command and its arguments, and return it as a `Command`.

    >>> checked("step", {"n": 10})
    Command(cmd='step', args={'n': 10})
    >>> checked("eval", {})
    Traceback (most recent call last):
        ...
    notebook_learner.steering.command.CommandError: there is no command 'eval'; there are status, run, \
resume, pause, stop, step, step_epoch, rewind, rewind_to, go_to, save, restore, breakpoint, inspect, verify, \
set
    """
    if not isinstance(cmd, str) or not (cmd in ARGUMENTS or cmd == "set"):
        known = ", ".join([*ARGUMENTS, "set"])
        raise CommandError(f"there is no command {str(cmd)[:40]!r}; there are {known}")
    if not isinstance(args, dict):
        raise CommandError(f"the arguments of {cmd} are an object")
    mistake = _changes(args) if cmd == "set" else mistake_in(cmd, args, ARGUMENTS[cmd])
    if mistake:
        raise CommandError(mistake)
    return Command(cmd, args)


def typed(words: Sequence[str]) -> Command:
    """Parse a command that a user typed.

    >>> typed(["set", "lr=1e-3", "num_epochs=20"])
    Command(cmd='set', args={'lr': 0.001, 'num_epochs': 20})
    >>> typed(["step", "0"])
    Traceback (most recent call last):
        ...
    notebook_learner.steering.command.CommandError: step takes n, a whole number from 1 to 1000000
    """
    cmd, *rest = words or [""]
    if cmd == "set":
        return checked(cmd, dict(_change_of(word) for word in rest))
    arguments = ARGUMENTS.get(cmd, {})
    if not rest and "n" in arguments:
        rest = ["1"]
    if cmd in ARGUMENTS and len(rest) != len(arguments):
        takes = " and ".join(f"{name}, {argument.what}" for name, argument in arguments.items()) or "nothing"
        raise CommandError(f"{cmd} takes {takes} after it")
    values = [argument.read(word) for argument, word in zip(arguments.values(), rest, strict=False)]
    return checked(cmd, dict(zip(arguments, values, strict=False)))


def option_of(name: str) -> tuple[str, int | None]:
    """The option and the parameter group that a name such as `lr[2]` means; None for `lr`: all groups.

    >>> option_of("lr[2]"), option_of("weight_decay")
    (('lr', 2), ('weight_decay', None))
    """
    match = _OPTION.fullmatch(name)
    assert match is not None, "only checked names come here"
    return match[1], None if match[2] is None else int(match[2])


# Allowed arguments -----------------------------------------------------------------------------------


class Argument(NamedTuple):
    """A description of the argument, a check of its value, and a parser for the typed word."""

    what: str
    fits: Callable[[object], bool]
    read: Callable[[str], object]


def mistake_in(cmd: str, args: Mapping[str, Any], arguments: Mapping[str, Argument]) -> str:
    """What is wrong with a command's arguments; empty if they are valid."""
    if set(args) != set(arguments):
        return f"{cmd} takes {', '.join(arguments) or 'no arguments'}"
    for name, argument in arguments.items():
        if not argument.fits(args[name]):
            return f"{cmd} takes {name}, {argument.what}"
    return ""


def _number_of(word: str) -> object:
    """The word as a number. A word that is not a number stays a word, and the check refuses it."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST


def _is_count(value: object, most: int = MOST_STEPS, least: int = 1) -> bool:
    return type(value) is int and least <= value <= most


def _typed(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


COUNT = Argument(f"a whole number from 1 to {MOST_STEPS}", _is_count, _number_of)
PLACE = Argument("a whole number from 0", lambda value: _is_count(value, _LAST, 0), _number_of)
NAME = Argument(f"a name of 1 to {_LONGEST} characters", _is_name, str)
FLAG = Argument(
    "on or off",
    lambda value: isinstance(value, bool),
    lambda word: {"on": True, "off": False}.get(word, word),
)

ARGUMENTS: dict[str, dict[str, Argument]] = {
    "status": {},
    "run": {},
    "resume": {},
    "pause": {},
    "stop": {},
    "step": {"n": COUNT},
    "step_epoch": {},
    "rewind": {"n": COUNT},
    "rewind_to": {"step": PLACE},
    "go_to": {"branch": NAME},
    "save": {},
    "restore": {"label": NAME},
    "breakpoint": {"name": NAME, "on": FLAG},
    "inspect": {"rank": PLACE},
    "verify": {},
}
"""Every command except `set`, whose arguments have their own names: lr, momentum, weight_decay, lr[1] and the
like for one parameter group, num_epochs."""


def _changes(args: Mapping[str, Any]) -> str:
    if not args:
        return "set needs something to set: lr=0.01, lr[1]=0.01 for one parameter group, num_epochs=20"
    for name, value in args.items():
        if match := _OPTION.fullmatch(name):
            if type(value) not in (int, float) or not 0 <= value <= _LARGEST:
                return f"{name} must be a number of at least 0, not {str(value)[:40]!r}"
            if match[1] == "momentum" and value >= 1:
                return f"{name} must be less than 1, not {str(value)[:40]!r}"
        elif name != "num_epochs":
            return (
                f"{name[:40]!r} cannot be set; lr, lr[1] (of one parameter group), momentum, weight_decay "
                "and num_epochs can"
            )
        elif not _is_count(value, 1 << 31):
            return f"num_epochs must be a whole number from 1, not {str(value)[:40]!r}"
    return ""


def _change_of(word: str) -> tuple[str, Any]:
    name, equals, value = word.partition("=")
    if not equals:
        raise CommandError(f"{word[:40]!r} is not a name=value pair, such as lr=0.01")
    return name.strip(), _number_of(value.strip())
