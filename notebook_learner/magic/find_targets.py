"""Find the name in a cell that holds the targets: `target` or `targets`, or the batch's second part."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
