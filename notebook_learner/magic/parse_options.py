"""The options of the magics that train. They are checked at once; a mistake is reported in one line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from IPython.core.error import UsageError

from .cell_step import KINDS
from .declare_magic import Arguments, argument

RUNNING: Arguments = (
    argument("learner", nargs="?", help="the learner's name; by default the only one of the notebook"),
    argument("--epochs", type=int, metavar="N", help="train N epochs from here, as fit(epochs=N)"),
    argument("--steps", type=int, metavar="N", help="take N steps, and report"),
    argument(
        "--until",
        metavar="EXPR",
        help="train until an expression holds after a training step: --until 'loss < 0.1'. It may name what "
        "the cell leaves, what the cell is given, and the notebook's names",
    ),
    argument("--background", action="store_true", help="return at once and train in the background"),
    argument("--dry", action="store_true", help="take one step, show what it did, and take it back"),
)
LEARNER: Arguments = RUNNING[:1]
BODY: Arguments = (
    argument(
        "--output",
        choices=KINDS,
        help="the output for the metrics, made of `output` and `target` (or the second part of `x, y = batch`"
        "); by default classification if the targets are class numbers, else regression, and none without "
        "these",
    ),
)
EXPORT: Arguments = (
    argument("--export", action="store_true", help="bring the values of the last step into the notebook"),
)
COUNT: Arguments = (
    argument("what", nargs="*", metavar="N", help="how many steps, by default 1; and the learner's name"),
)
PLACE: Arguments = (
    argument(
        "what",
        nargs="*",
        metavar="N|EPOCH:STEP",
        help="how many steps to take back, by default 1, or the position to go back to; and the "
        "learner's name",
    ),
)
RANK: Arguments = (
    argument("--rank", type=int, default=0, metavar="N", help="on several devices, of which rank"),
)
DIRECTORY: Arguments = (argument("directory", metavar="DIR", help="the folder of the new run"),)


@dataclass(frozen=True)
class Running:
    """How far to train, and where."""

    epochs: int | None = None
    steps: int | None = None
    until: str | None = None
    background: bool = False
    dry: bool = False
    export: bool = False

    @property
    def plain(self) -> bool:
        """Whether no option was given, so that training goes on as before."""
        return self == Running(export=self.export)


def running(given: Any) -> Running:
    """Check the parsed options.

    Raises:
        UsageError: a number below 1, or two options that exclude each other.
    """
    until = None if given.until is None else unquoted(given.until)
    options = Running(
        given.epochs, given.steps, until, given.background, given.dry, getattr(given, "export", False)
    )
    for name in ("epochs", "steps"):
        number = getattr(options, name)
        if number is not None and number < 1:
            raise UsageError(f"--{name} {number}: give a whole number from 1")
    _exclude(options)
    return options


def _exclude(options: Running) -> None:
    ways = {f"--{name}": getattr(options, name) for name in ("epochs", "steps", "until", "dry")}
    chosen = [name for name, value in ways.items() if value not in (None, False)]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} exclude each other; keep one")
    if options.background and (others := [name for name in chosen if name != "--epochs"]):
        raise UsageError(f"--background trains to the end, or for --epochs N; leave out {others[0]}")
    if options.background and options.export:
        raise UsageError("--export brings values when the cell ends, which --background does not wait for")


def unquoted(text: str) -> str:
    """The text without the quotes, which IPython leaves in it."""
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def position_or_count(text: str) -> int | tuple[Any, ...]:
    """Parse the argument of `%rewind`: 3, or 2:117, or 2:valid:0.

    Raises:
        UsageError: the text has another form.
    """
    parts = text.split(":")
    middle = parts[1:2] if len(parts) == 3 else []
    numbers = [parts[0], parts[-1]]
    whole = all(number.isascii() and number.isdigit() for number in numbers)
    if not whole or not set(middle) <= {"train", "valid"} or len(parts) > 3:
        raise UsageError(f"%rewind {text}: give a number of steps, EPOCH:STEP as in 2:117, or 2:valid:0")
    if len(parts) == 1:
        return at_least_one("%rewind", text)
    where = int(parts[0]), *middle, int(parts[-1])
    if where[0] == 0:
        raise UsageError(f"%rewind {text}: epochs count from 1")
    return where


def at_least_one(magic: str, text: str) -> int:
    """Parse a number of steps.

    Raises:
        UsageError: the text is not a whole number from 1.
    """
    if not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"{magic} {text}: give a whole number from 1")
    return int(text)
