"""What the options of a running magic do."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from IPython.core.error import UsageError

from ..event import Split
from ..learner.learner import Learner
from .cell_body import GIVEN
from .cell_step import CellStep
from .dry_run import DryReport
from .parse_options import Running

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
    with _exported(learner, names if options.export else None):
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
        names.update(trial.locals)
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
            names.update(learner.locals)


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
