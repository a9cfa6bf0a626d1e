"""The names that a body reads before it assigns them. In a loop they have the values of the step before."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence

Names = frozenset[str]
_NONE: Names = frozenset()
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def carried_in(body: Sequence[ast.stmt], own: Collection[str]) -> tuple[str, ...]:
    """The names out of `own`, in the order in which they are read.

    A name that one branch alone assigns may be read before. A loop in the body is taken to run at least once.

    >>> carried_in(ast.parse("hidden = cell(x, hidden); count += 1; loss = hidden.sum()").body,
    ...            ["hidden", "count", "loss"])
    ('hidden', 'count')
    """
    reading = _Reading(own)
    reading.block(body, _NONE)
    return tuple(reading.found)


class _Reading:
    """Goes through statements as Python runs them, with the names that are surely assigned by then."""

    def __init__(self, own: Collection[str]) -> None:
        self._own = frozenset(own)
        self.found: dict[str, None] = {}

    def block(self, statements: Iterable[ast.stmt], sure: Names) -> Names:
        for each in statements:
            sure = self._statement(each, sure)
        return sure

    def _statement(self, node: ast.stmt, sure: Names) -> Names:
        match node:
            case ast.Assign(targets=targets, value=value):
                return self._assigned(targets, self._read(value, sure))
            case ast.AugAssign(target=target, value=value):
                sure = self._read(value, sure)
                if isinstance(target, ast.Name):
                    self._note(target.id, sure)
                return self._assigned([target], sure)
            case ast.AnnAssign(target=target, value=value):
                return sure if value is None else self._assigned([target], self._read(value, sure))
            case ast.If(test=test, body=body, orelse=orelse):
                sure = self._read(test, sure)
                return self.block(body, sure) & self.block(orelse, sure)
            case ast.For(target=target, iter=over, body=body, orelse=orelse):
                return self.block([*body, *orelse], self._assigned([target], self._read(over, sure)))
            case ast.While(test=test, body=body, orelse=orelse):
                return self.block([*body, *orelse], self._read(test, sure))
            case ast.With(items=items, body=body):
                for item in items:
                    sure = self._read(item.context_expr, sure)
                    sure = self._assigned([item.optional_vars] if item.optional_vars else [], sure)
                return self.block(body, sure)
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=last):
                for each in handlers:
                    self.block(each.body, sure | _bound([each]))
                return self.block([*body, *orelse, *last], sure)
            case ast.Match(subject=subject, cases=cases):
                sure = self._read(subject, sure)
                for case in cases:
                    self.block(case.body, sure | _bound([case.pattern]))
                return sure
        return self._others(node, sure)

    def _others(self, node: ast.stmt, sure: Names) -> Names:
        """Statements without a body that is run now."""
        if isinstance(node, (*_SCOPES, ast.Import, ast.ImportFrom, ast.Delete)):
            return sure | _bound([node])
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                sure = self._read(child, sure)
        return sure

    def _assigned(self, targets: Iterable[ast.expr], sure: Names) -> Names:
        for target in targets:
            sure = self._read(target, sure)
        return sure | _bound(targets)

    def _read(self, node: ast.expr, sure: Names) -> Names:
        """What an expression reads; what it binds by `:=` is taken to be bound before."""
        sure |= _bound([node]) if not isinstance(node, (ast.Name, ast.Tuple, ast.List)) else _NONE
        for name in _loaded(node):
            self._note(name, sure)
        return sure

    def _note(self, name: str, sure: Names) -> None:
        if name in self._own and name not in sure:
            self.found[name] = None


def _loaded(node: ast.AST) -> Iterator[str]:
    """The names that are read when an expression is evaluated; those of inner functions are read later."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    if isinstance(node, _SCOPES):
        return
    inner = _bound(node.generators) if isinstance(node, _COMPREHENSIONS) else _NONE
    for child in ast.iter_child_nodes(node):
        yield from (name for name in _loaded(child) if name not in inner)


def _bound(nodes: Iterable[ast.AST]) -> Names:
    """The names that are bound anywhere in these nodes, outside of inner functions."""
    found: set[str] = set()
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
                continue
            case ast.Lambda():
                continue
            case ast.alias(name=name, asname=given):
                found.add((given or name).split(".")[0])
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                found.add(name)
            case ast.MatchMapping(rest=str(name)):
                found.add(name)
        found |= _bound(ast.iter_child_nodes(node))
    return frozenset(found)
