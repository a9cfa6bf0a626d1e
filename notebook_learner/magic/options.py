"""The options of the magics that train: declared, parsed, checked, and carried out."""

from __future__ import annotations

import ast
import builtins
import math
from argparse import BooleanOptionalAction
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from IPython.core import magic as core
from IPython.core import magic_arguments as parsing
from IPython.core.error import UsageError
from torch import Tensor

from ..event import Split
from ..event.position import Position
from ..learner.learner import Learner
from .cell_body import GIVEN
from .cell_step import KINDS, CellStep

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
Arguments = tuple[Any, ...]

_core: Any = core  # neither has types
_parsing: Any = parsing
argument = _parsing.argument


def magics(cls: C) -> C:
    """Mark a class as a class of magics."""
    made: C = _core.magics_class(cls)
    return made


def magic(written: str, *groups: Arguments) -> Callable[[F], F]:
    """Make a method the magic that is written like this ("%%train" or "%train"), with these arguments. Its
    help shows them in this order."""
    name = written.lstrip("%")
    kind = _core.cell_magic if written.startswith("%%") else _core.line_magic

    def decorate(function: F) -> F:
        made = kind(name)(function)
        for each in reversed([each for group in groups for each in group]):
            made = each(made)
        named: F = _parsing.magic_arguments(written[1:])(made)  # IPython puts a % before it
        return named

    return decorate


def read(method: Any, line: str) -> Any:
    """Parse the text after a magic into attributes; a mistake raises a UsageError."""
    return _parsing.parse_argstring(method, line)


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
    argument(
        "--export",
        action=BooleanOptionalAction,
        help="whether the notebook gets the values of the last step, without their graphs; by default it "
        "does, but not with --background or --dry",
    ),
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
    export: bool | None = None

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
        given.epochs, given.steps, until, given.background, given.dry, getattr(given, "export", None)
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


_WIDTH = 60


@dataclass(frozen=True, repr=False)
class DryReport:
    """One step that was taken and taken back; `values` has its values by name."""

    position: Position
    values: Mapping[str, Any]

    def __repr__(self) -> str:
        loss = self.values.get("loss")
        told = f": loss {_number(loss)}" if _is_number(loss) else ""
        heading = f"a dry step to {self.position}{told}; nothing has changed"
        width = max((len(name) for name in self.values), default=0)
        lines = [f"  {name:<{width}}  {described(value)}" for name, value in self.values.items()]
        return "\n".join([heading, *lines, *self._warning()])

    def _warning(self) -> list[str]:
        broken = [
            name for name, value in self.values.items() if isinstance(value, Tensor) and not _finite(value)
        ]
        return [f"not finite: {', '.join(broken)}"] if broken else []


def described(value: Any) -> str:
    """A value in a few words: shape and type of a tensor, or the number itself."""
    if isinstance(value, Tensor):
        kind = f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
        where = "" if value.device.type == "cpu" else f" {value.device}"
        return f"{kind}{where}" + (f"  {_number(value)}" if _is_number(value) else "")
    if isinstance(value, (str, int, float, bool, type(None))):
        return repr(value) if len(repr(value)) <= _WIDTH else f"{repr(value)[: _WIDTH - 3]}..."
    if isinstance(value, (list, tuple, dict, set)):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (
        isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    )


def _number(value: Any) -> str:
    number = float(value.detach() if isinstance(value, Tensor) else value)
    return f"{number:.6g}" if math.isfinite(number) else str(number)


def _finite(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())


Names = dict[str, Any]
FIELDS = ("output", "logits", "targets", "loss")
"""Fields that an output may have which no cell made."""


def run(learner: Learner, options: Running, names: Names) -> Any:
    """Train as far as the options say; return what the cell shows."""
    __tracebackhide__ = True  # as in `fit`: a traceback shows the cell only
    step = learner._step_in_use("train")
    cell = step if isinstance(step, CellStep) else None
    if options.background:
        return learner.start(epochs=options.epochs)
    learner._show()  # a long training needs a panel, with its button to pause
    with _exported(learner, None if options.export is False else names):
        if options.steps is not None:
            return learner.step(options.steps)
        if options.until is not None:
            return learner.run_until(condition(learner, options.until, cell, names))
        learner.fit(epochs=options.epochs)
    return None


def dry(learner: Learner, step: CellStep | None, options: Running, names: Names) -> DryReport:
    """Take one step of this cell (or of the step in use), and take it back."""
    __tracebackhide__ = True
    trial = learner.tools.try_step(step)
    if options.export:
        names.update(_without_graphs(trial.locals))
    return DryReport(trial.position, dict(trial.locals) or _fields(trial.output))


def _fields(output: Any) -> Names:
    there = ((name, getattr(output, name, None)) for name in FIELDS)
    return {name: value for name, value in there if value is not None}


@contextmanager
def _exported(learner: Learner, names: Names | None) -> Iterator[None]:
    """Bring the last step's values into the notebook at the end, also after an error or an interrupt."""
    try:
        yield
    finally:
        if names is not None:
            names.update(_without_graphs(learner.locals))


def _without_graphs(value: Any) -> Any:
    """The same value; tensors in it leave their graph, which takes more memory than they do."""
    if isinstance(value, Tensor):
        return value if value.grad_fn is None else value.detach()
    if type(value) in (list, tuple):
        return type(value)(map(_without_graphs, value))
    if type(value) is dict:
        return {key: _without_graphs(each) for key, each in value.items()}
    return value


# A new step, at any place of the training --------------------------------------------------------------


def put_in(learner: Learner, split: Split, step: CellStep) -> bool:
    """Make a cell the step of this split. If training runs in the background, pause it for that, and return
    True. A cell with the same code as the last one is no edit."""
    paused = pause_background(learner)
    present = learner._step_in_use(split)
    if isinstance(present, CellStep) and step.is_like(present):
        present.adopt(step)
    else:
        edited = isinstance(present, CellStep)
        if isinstance(present, CellStep):
            step.follow(present)
        learner.tools.use_step(split, step, "cell edited" if edited else f"a %%{split} cell takes over")
    return paused


def pause_background(learner: Learner) -> bool:
    """Pause background training; return True if it ran, and now stands."""
    if learner.status != "running":
        return False
    learner.pause()
    status: str = learner.status  # it may have ended just now
    return status == "paused"


# --until -----------------------------------------------------------------------------------------------


def condition(learner: Learner, text: str, cell: CellStep | None, names: Names) -> Callable[[Learner], bool]:
    """Make a condition of an expression over the cell's values, checked after each step of the cell.

    Raises:
        UsageError: the text is not an expression, or has a name that does not exist.
    """
    try:
        code = compile(text, "--until", "eval", dont_inherit=True)
    except (SyntaxError, ValueError) as wrong:
        reason = wrong.msg if isinstance(wrong, SyntaxError) else wrong
        raise UsageError(f"--until {text!r} is no expression: {reason}") from None
    step = (*GIVEN, *(cell.body.assigned if cell is not None else FIELDS))
    known = {*step, *names, *dir(builtins)}
    if unknown := [name for name in _free_names(text) if name not in known]:
        raise UsageError(
            f"--until {text!r}: there is no `{unknown[0]}`; a step has {', '.join(sorted(step))}"
        )
    asked = learner.position.iteration

    def holds(learner: Learner) -> bool:
        nonlocal asked
        before, asked = asked, learner.position.iteration
        if before == asked:
            return False  # a validation step has no new values
        values = learner.locals if cell is not None else _fields(learner.output)
        return bool(eval(code, {**names, **_given(learner), **values}))

    return holds


def _given(learner: Learner) -> Names:
    """The values that the body was given in the last training step."""
    at = learner.position
    return dict(zip(GIVEN, (learner.model, learner.batch, learner, at.epoch, at.step - 1), strict=True))


def _free_names(text: str) -> list[str]:
    nodes = list(ast.walk(ast.parse(text, mode="eval")))
    bound = {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    return [node.id for node in nodes if isinstance(node, ast.Name) and node.id not in bound]
