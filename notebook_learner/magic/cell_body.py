"""The body of a cell as a function: it sees the notebook's names, and its own names are local."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from IPython.core.error import UsageError

from ..errors import StepError
from ..step.optimizer_calls import may_step
from .carried_names import carried_in

_NAMED = ("targets", "target")
"""A cell that assigns one of these names its targets."""
_KEYS = ("labels", "label", "targets", "target", "y")
"""The keys of the targets in a batch that is a dict."""
_KEEPS = (
    *("to", "cuda", "cpu", "float", "double", "half", "long", "int", "bool", "type"),
    *("contiguous", "clone", "detach", "squeeze", "unsqueeze", "flatten", "view", "reshape"),
)
"""Methods of a tensor that give the same targets in another type, place or shape."""


@dataclass(frozen=True)
class Targets:
    """The name under which a cell leaves its targets."""

    name: str | None
    """None if the cell does not show it."""
    possible: tuple[str, ...] = ()
    """The parts of the batch that may be the targets, if the cell leaves a doubt."""


def targets_in(nodes: Iterable[ast.AST], batch: str) -> Targets:
    """Find the name of the targets, if the cell leaves no doubt.

    The batch's second part is the `y` of `x, y = batch` (with any names), of `y = batch[1]` if no third part
    is used, or of `y = batch["label"]`. With three parts the second need not be the targets. If two names
    fit, neither is taken, as metrics of the wrong one would look right.

    Args:
        nodes: the nodes of the cell, without the inside of functions and classes that it defines.
        batch: the name of the batch in the cell.
    """
    found = list(nodes)
    bindings = [each for node in found for each in _bindings(node)]
    names = dict.fromkeys(name for name, _ in bindings)
    if named := next((name for name in _NAMED if name in names), None):
        return Targets(named)
    parts = [(name, _part(value, batch)) for name, value in bindings]
    used = {part for _, part in parts} | {_key(node, batch) for node in found}
    pair = all(part in (0, 1) for part in used if isinstance(part, int))
    sure = {name for name, part in parts if name != "_" and (part in _KEYS or (part == 1 and pair))}
    possible = {name: None for name, part in parts if name != "_" and part not in (None, 0)}
    only = next(iter(sure)) if len(sure) == 1 else ""
    return Targets(only) if only and _is_kept(only, bindings, batch) else Targets(None, tuple(possible))


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """The names that a node binds, with the value of each; None if no assignment shows it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _pairs(target, node.value)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield from _pairs(node.target, node.value)
    elif isinstance(node, (ast.For, ast.AugAssign, ast.NamedExpr)):
        yield from _pairs(node.target, None)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield from _pairs(node.optional_vars, None)
    elif isinstance(node, ast.Delete):
        for target in node.targets:
            yield from _pairs(target, None)


def _pairs(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, ast.expr | None]]:
    """`x, y = batch` is `x = batch[0]` and `y = batch[1]`."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Starred):
        yield from _pairs(target.value, None)
    elif isinstance(target, (ast.Tuple, ast.List)):
        starred = any(isinstance(each, ast.Starred) for each in target.elts)
        for index, each in enumerate(target.elts):
            yield from _pairs(each, None if value is None or starred else _element(value, index))


def _element(value: ast.expr, index: int) -> ast.expr | None:
    if isinstance(value, (ast.Tuple, ast.List)):
        return value.elts[index] if index < len(value.elts) else None
    return ast.Subscript(value, ast.Constant(index), ast.Load())


def _part(value: ast.expr | None, batch: str) -> int | str | None:
    """The part of the batch that an expression gives, by its number or its key."""
    return None if value is None else _key(_without_conversions(value), batch)


def _key(node: ast.AST, batch: str) -> int | str | None:
    if not isinstance(node, ast.Subscript) or not _is_name(node.value, batch):
        return None
    try:
        key = ast.literal_eval(node.slice)
    except ValueError:  # batch[index], batch[:2]
        return None
    return key if isinstance(key, (int, str)) else None


def _without_conversions(value: ast.expr) -> ast.expr:
    """Reduce `y.to(device).long()` to y, which has the same meaning."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _KEEPS:
        value = value.func.value
    return value


def _is_kept(name: str, bindings: list[tuple[str, ast.expr | None]], batch: str) -> bool:
    """Whether the name keeps that part to the end: `for y in ...` or `y = smooth(y)` changes it."""
    given = [value for bound, value in bindings if bound == name]
    return all(
        value is not None and (_part(value, batch) is not None or _is_name(_without_conversions(value), name))
        for value in given
    )


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


@dataclass(frozen=True)
class CellSource:
    """A body as Python, with comments for the lines of the cell above it.

    `name` is the file name of the whole cell, which `breakpoint()`, `%debug` and the debugger of JupyterLab
    use. They take code with this name, and with the cell's line numbers, for the cell's code.
    """

    text: str
    name: str
    first: int
    """The line of the cell in which the body begins."""


def source_of(shell: Any, magic: str, line: str, cell: str) -> CellSource:
    """The body of the cell that runs now, which begins with `%%magic line`."""
    raw, above = _in_its_cell(shell, f"%%{magic} {line}", cell)
    lines = cell.split("\n")  # as Python does: not at a form feed
    blank = next((i for i, each in enumerate(lines) if each.strip()), len(lines))
    # IPython would drop the blank lines, and all lines would move up.
    body = "\n".join(lines[blank:]).rstrip()
    if not body:
        raise UsageError(f"the cell has nothing below its %%{magic}; write the step there")
    if body.startswith("%%"):
        raise UsageError(f"{body.split()[0]} inside of %%{magic} is no part of a step; put it on top")
    first = above + blank
    heading = [f"#{each}" for each in raw.split("\n")[:first]]
    text = "\n".join([*heading, shell.transform_cell(f"{body}\n")])
    # A terminal makes the name of the number; a kernel makes it of the raw cell's hash.
    name = shell.compile.cache(text, shell.execution_count, raw_code=raw)
    return CellSource(text, name, first + 1)


def _in_its_cell(shell: Any, heading: str, cell: str) -> tuple[str, int]:
    """The cell as it was typed, and the number of its lines before the body."""
    body = _stripped(cell)
    for raw in _typed(shell):
        whole = _stripped(raw)
        if body and whole[-len(body) :] == body:
            return raw, len(whole) - len(body)
    return f"{heading}\n{cell}", 1  # called by code, not typed


def _stripped(text: str) -> list[str]:
    """The text's lines without the space around them, which IPython changes, and without blank lines at the
    end."""
    return [line.strip() for line in text.rstrip().split("\n")]


def _typed(shell: Any) -> list[str]:
    """Candidates for the running cell: the kernel's request, or the last line of the history."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    code = parent.get("content", {}).get("code")
    history = shell.history_manager.input_hist_raw if shell.history_manager is not None else []
    return [*([code] if isinstance(code, str) else []), *history[-1:]]


GIVEN = ("model", "batch", "learner", "epoch", "step")
"""The names of the values that every body is given."""
_LEFT, _LOCALS, _MISSING = "__left__", "__locals__", "__missing__"
MISSING: Any = object()
"""Stands for the value of a carried name that has none yet."""
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
    carried: tuple[str, ...]
    """The names that it reads before it assigns them. It is called with their values, after those that GIVEN
    names."""
    text: str = field(repr=False)
    """What the user wrote."""
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
    given = carried_in(tree.body, _stored(tree) - {*GIVEN})
    with _mistakes_shown(shell):
        code = shell.compile(_wrapped(tree, f"{kind}_step", last, given), source.name, "exec")
    made: dict[str, Any] = {}
    # Two dicts: the definition itself goes into the second one, and not into the notebook.
    exec(code, shell.user_ns, made)
    inner = _inner(made["make"].__code__)
    own = dict.fromkeys(inner.co_varnames + inner.co_cellvars)
    assigned = tuple(name for name in own if name not in GIVEN or name in _stored(tree))
    drives = kind == "train" and may_step(inner)
    if kind == "train" and "loss" not in assigned and not drives:
        raise UsageError(_NO_LOSS)
    if not {"loss", "output"} & {*assigned} and not drives:
        raise UsageError(_NOTHING_LEFT)
    left = _values_left(assigned, "loss" if kind == "train" and "loss" in assigned else None)
    function = made["make"](left, builtins.locals, MISSING)
    function.__code__ = _named_as_a_cell(function.__code__)
    text = "\n".join(source.text.rstrip().split("\n")[source.first - 1 :])
    return Body(function, assigned, targets_in(_outside_of_functions(tree), "batch"), given, text, shape)


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


def _wrapped(tree: ast.Module, name: str, last: int, carried: Sequence[str]) -> ast.Module:
    """`def make(__left__, __locals__, __missing__): def name(model, ..., hidden): <body>; return
    __left__(__locals__())`. A carried name without a value is deleted first, as in a loop's first round.

    `__left__` and `__locals__` are variables of an outer function, so that the notebook's names and
    overwritten builtins cannot hide them. (Asking the frame instead of `locals` costs each step 4 us more.)
    """
    values = ast.Call(ast.Name(_LOCALS, ast.Load()), [], [])
    leave = ast.Return(ast.Call(ast.Name(_LEFT, ast.Load()), [values], []))
    without = [_unless_there(each) for each in carried]
    step = _function(name, (*GIVEN, *carried), [*without, *tree.body, leave])
    give = ast.Return(ast.Name(name, ast.Load()))
    module = ast.Module([_function("make", (_LEFT, _LOCALS, _MISSING), [step, give])], [])
    for each in without:
        for node in ast.walk(each):
            ast.copy_location(node, tree.body[0])
    for node in ast.walk(leave):
        ast.copy_location(node, ast.Pass(lineno=last, col_offset=0, end_lineno=last, end_col_offset=0))
    return ast.fix_missing_locations(module)


def _unless_there(name: str) -> ast.stmt:
    (made,) = ast.parse(f"if {name} is {_MISSING}: del {name}").body
    return made


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
                "an object's contents instead (counts['steps'] += 1); the cell's own names it gets at the end"
            )


def _outside_of_functions(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes outside of functions and classes in the body, which have rules of their own."""
    for child in ast.iter_child_nodes(node):
        yield child
        if isinstance(child, _SCOPES):
            continue
        yield from _outside_of_functions(child)


def _stored(tree: ast.Module) -> frozenset[str]:
    """The names that the body binds."""
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
