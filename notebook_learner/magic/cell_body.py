"""The body of a cell as a function: it sees the notebook's names, and its own names are local."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from IPython.core.error import UsageError

from ..errors import StepError
from .cell_source import CellSource
from .find_targets import Targets, targets_in

GIVEN = ("model", "batch", "learner", "epoch", "step")
"""The names of the values that every body is given."""
_LEFT, _LOCALS = "__left__", "__locals__"
_CELL = "<module>"

_NO_LOSS = "the cell never assigns `loss`; let it leave a scalar tensor there: loss = F.mse_loss(model(x), y)"
_NOTHING_LEFT = "the cell assigns neither `loss` nor `output`, so there is nothing for the metrics to read"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NO_PLACE: dict[type[ast.AST], str] = {
    ast.Return: "`return` does not end a step: the step is the whole cell, and its result is what `loss` "
    "holds at the end; use if and else",
    ast.Yield: "a step gives one `loss`, it does not `yield`",
    ast.YieldFrom: "a step gives one `loss`, it does not `yield`",
    ast.Await: "a step is taken by the training loop, which cannot `await`",
    ast.AsyncFor: "a step is taken by the training loop, which cannot run `async for`",
    ast.AsyncWith: "a step is taken by the training loop, which cannot run `async with`",
}


@dataclass(frozen=True)
class Body:
    """A cell's body, called with the values that GIVEN names; it returns the values it left, by name."""

    function: Callable[..., dict[str, Any]]
    assigned: tuple[str, ...]
    """The names that it assigns anywhere, in their order."""
    targets: Targets
    shape: str = field(repr=False)
    """Equal for two bodies that differ only in comments, blank lines and place."""


def compiled(shell: Any, source: CellSource, kind: str) -> Body:
    """Make the body a function whose globals are the notebook's names, looked up when it runs.

    The names that the body assigns are local variables of the function. It cannot bind a name of the
    notebook; an error says so if it tries.
    """
    with _mistakes_shown(shell):
        tree = shell.compile.ast_parse(source.text, source.name)
    _refuse(tree)
    shape = ast.dump(tree)
    last = max(source.first, source.text.rstrip().count("\n") + 1)
    with _mistakes_shown(shell):
        code = shell.compile(_wrapped(tree, f"{kind}_step", last), source.name, "exec")
    made: dict[str, Any] = {}
    # Two dicts: the definition itself goes into the second one, and not into the notebook.
    exec(code, shell.user_ns, made)
    inner = _inner(made["make"].__code__)
    own = dict.fromkeys(inner.co_varnames + inner.co_cellvars)
    assigned = tuple(name for name in own if name not in GIVEN or name in _stored(tree))
    if kind == "train" and "loss" not in assigned:
        raise UsageError(_NO_LOSS)
    if not {"loss", "output"} & {*assigned}:
        raise UsageError(_NOTHING_LEFT)
    function = made["make"](_values_left(assigned, "loss" if kind == "train" else None), builtins.locals)
    function.__code__ = _named_as_a_cell(function.__code__)
    return Body(function, assigned, targets_in(_outside_of_functions(tree), "batch"), shape)


def _named_as_a_cell(code: CodeType) -> CodeType:
    """Name the code like a cell's code, so that tracebacks and debuggers show the right lines. For a
    function's name `inspect` looks for a `def` in the source, finds none, and shows the first line."""
    names = {"co_name": _CELL, "co_qualname": _CELL} if hasattr(code, "co_qualname") else {"co_name": _CELL}
    return code.replace(**names)  # type: ignore[arg-type]


@contextmanager
def _mistakes_shown(shell: Any) -> Iterator[None]:
    """Show a mistake in the cell as in any cell: its line, without the frames that compiled it."""
    try:
        yield
    except SyntaxError as mistake:
        shown = shell.SyntaxTB.structured_traceback(type(mistake), mistake, [])
        raise CellSyntaxError(mistake, shown) from None


class CellSyntaxError(Exception):
    """Shown as a SyntaxError, but not a subclass, since IPython shows all frames of those."""

    def __init__(self, mistake: SyntaxError, shown: list[str]) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake
        self._shown = shown

    def _render_traceback_(self) -> list[str]:
        return self._shown


CellSyntaxError.__name__ = "SyntaxError"


def _wrapped(tree: ast.Module, name: str, last: int) -> ast.Module:
    """`def make(__left__, __locals__): def name(model, ...): <body>; return __left__(__locals__())`.

    `__left__` and `__locals__` are variables of an outer function, so that the notebook's names and
    overwritten builtins cannot hide them. (Asking the frame instead of `locals` costs each step 4 us more.)
    """
    values = ast.Call(ast.Name(_LOCALS, ast.Load()), [], [])
    leave = ast.Return(ast.Call(ast.Name(_LEFT, ast.Load()), [values], []))
    step = _function(name, GIVEN, [*tree.body, leave])
    give = ast.Return(ast.Name(name, ast.Load()))
    module = ast.Module([_function("make", (_LEFT, _LOCALS), [step, give])], [])
    for node in ast.walk(leave):
        ast.copy_location(node, ast.Pass(lineno=last, col_offset=0, end_lineno=last, end_col_offset=0))
    return ast.fix_missing_locations(module)


def _function(name: str, parameters: tuple[str, ...], body: list[ast.stmt]) -> ast.FunctionDef:
    (made,) = ast.parse(f"def {name}({', '.join(parameters)}): pass").body  # all fields of this Python
    assert isinstance(made, ast.FunctionDef)
    made.body = body
    return made


def _inner(code: CodeType) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType))


def _values_left(assigned: tuple[str, ...], required: str | None) -> Callable[..., dict[str, Any]]:
    def left(present: dict[str, Any]) -> dict[str, Any]:
        """Called last in the body, so that the error of a missing value is raised in the cell's own frame."""
        values = {name: present[name] for name in assigned if name in present}
        if required is not None and required not in values:
            raise StepError(
                f"the cell has left no `{required}` in this step: it is assigned in one branch only, "
                "and this step took another one; assign it in every branch"
            )
        return values

    return left


# What a step must not contain ------------------------------------------------------------------------


def _refuse(tree: ast.Module) -> None:
    for node in _outside_of_functions(tree):
        if why := _NO_PLACE.get(type(node)):
            raise UsageError(f"line {node.lineno}: {why}")  # type: ignore[attr-defined]
        if isinstance(node, ast.comprehension) and node.is_async:
            raise UsageError(f"line {node.iter.lineno}: {_NO_PLACE[ast.AsyncFor]}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            names = ", ".join(node.names)
            raise UsageError(
                f"line {node.lineno}: `global {names}` would change the notebook's names from a step; change "
                "an object's contents instead (counts['steps'] += 1), or take --export"
            )


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside of functions and classes in the body, which have rules of their own."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, _SCOPES):
            continue
        yield from _outside_of_functions(child)


def _stored(tree: ast.Module) -> frozenset[str]:
    """The given names that the body binds again."""
    found = set()
    for node in _outside_of_functions(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            found.add(node.rest)
    return frozenset(found)
