"""New code for a live model: its modules get the redefined classes, and keep their weights."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from tokenize import TokenError
from types import CodeType
from typing import Any

from torch import nn

from ..errors import StateError

Namespace = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Reloaded:
    """What `reload_code` did: the new classes, their changed methods, and what the user should know about
    `__init__`, which was not run.

    >>> Reloaded({"Net": ("forward",)}, ())
    reloaded Net (forward); the weights are as they were
    >>> Reloaded({}, ())
    nothing to reload: no class of the model was defined anew
    """

    classes: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        if not self.classes:
            return "\n".join(["nothing to reload: no class of the model was defined anew", *self.notes])
        parts = [
            f"{name} ({', '.join(methods)})" if methods else name for name, methods in self.classes.items()
        ]
        return "\n".join([f"reloaded {', '.join(parts)}; the weights are as they were", *self.notes])


def reload_code(model: nn.Module, namespace: Namespace, also: Iterable[nn.Module] = ()) -> Reloaded:
    """Give every module the new class if its class was redefined under the same name in the same Python
    module.

    Weights, buffers and all other attributes stay. `__init__` is not run: the code only compares what it sets
    with what the live modules have.

    Args:
        model: the model in training.
        namespace: the names of the notebook, in which classes of `__main__` are looked up.
        also: other models of the same classes, such as the moving average.

    Raises:
        StateError: a new `__init__` sets an attribute that a live module lacks, or Python cannot assign the
            new class. Nothing has changed.
    """
    roots = (model, *also)
    pairs = [
        (module, new)
        for root in roots
        for module in root.modules()
        if (new := _newer(type(module), namespace))
    ]
    changes = {type(module): new for module, new in pairs}
    wrong = [line for old, new in changes.items() for line in _lacking(_modules_of(old, pairs), old, new)]
    if wrong:
        raise StateError(
            "the new code does not fit the model in training, so nothing was changed:\n"
            + "\n".join(f"  - {line}" for line in wrong)
        )
    _replace(pairs)
    classes = {new.__qualname__: _changed_methods(old, new) for old, new in changes.items()}
    return Reloaded(classes, (*_notes(changes), *_stale_bases(roots, namespace)))


def redefined(model: nn.Module, namespace: Namespace) -> list[type]:
    """The new classes of the model's modules whose source has changed. A cell that was run again without a
    change gives none."""
    newer = {old: _newer(old, namespace) for old in {type(module) for module in model.modules()}}
    return [new for old, new in newer.items() if new is not None and _changed_methods(old, new)]


def _newer(old: type, namespace: Namespace) -> type | None:
    """The class that now has this one's name; None if it is the same class, or no class has the name."""
    here = (
        namespace
        if old.__module__ == namespace.get("__name__")
        else vars(sys.modules.get(old.__module__, old))
    )
    first, *rest = old.__qualname__.split(".")
    found = here.get(first)
    for name in rest:  # "<locals>" is not an attribute
        found = getattr(found, name, None)
    return found if isinstance(found, type) and found is not old and issubclass(found, nn.Module) else None


def _modules_of(old: type, pairs: Iterable[tuple[nn.Module, type]]) -> list[nn.Module]:
    return [module for module, _ in pairs if type(module) is old]


def _replace(pairs: list[tuple[nn.Module, type]]) -> None:
    done: list[tuple[nn.Module, type]] = []
    for module, new in pairs:
        old = type(module)
        try:
            module.__class__ = new
        except TypeError as refused:
            for each, before in done:
                each.__class__ = before
            raise StateError(
                f"{old.__qualname__} cannot become the new one in place ({refused}), so nothing was changed; "
                "build the model and the learner anew"
            ) from None
        done.append((module, old))


# Methods -----------------------------------------------------------------------------------------------


def _changed_methods(old: type, new: type) -> tuple[str, ...]:
    """The names that the two classes define differently; line numbers in the cell do not count."""
    mine, theirs = _members(old), _members(new)
    return tuple(name for name in {**theirs, **mine} if mine.get(name) != theirs.get(name))


def _members(cls: type) -> dict[str, Any]:
    skipped = ("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "__static_attributes__")
    return {name: _essence(value) for name, value in vars(cls).items() if name not in skipped}


def _essence(value: Any) -> Any:
    """A value that compares equal for the same code."""
    if isinstance(value, (staticmethod, classmethod)):
        return type(value).__name__, _essence(value.__func__)
    if isinstance(value, property):
        return "property", *(_essence(each) for each in (value.fget, value.fset, value.fdel))
    if inspect.isfunction(value):
        return _code(value.__code__), repr(value.__defaults__), repr(value.__kwdefaults__)
    return repr(value)


def _code(code: CodeType) -> Any:
    constants = tuple(_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


# What __init__ says ------------------------------------------------------------------------------------


def _lacking(modules: list[nn.Module], old: type, new: type) -> Iterator[str]:
    """What the new `__init__` sets on every path, and a live module lacks."""
    sets, before = _assigned(new), _assigned_before(old, new)
    for name, (certain, text) in (sets or {}).items():
        if certain and name not in (before or {}) and not all(hasattr(module, name) for module in modules):
            yield (
                f"{new.__qualname__}.__init__ now sets self.{name} ({text}), which the live model lacks; "
                "build the model and the learner anew, or set it on the live one first"
            )


def _notes(changes: Mapping[type, type]) -> Iterator[str]:
    for old, new in changes.items():
        if "__init__" not in _changed_methods(old, new):
            continue
        after, before = _assigned(new), _assigned_before(old, new)
        told = f"{new.__qualname__}.__init__ has changed, and was not run"
        if after is None or before is None:
            yield f"{told}; its source cannot be read, so it is not known whether the parameters still fit"
            continue
        other = [f"self.{name}" for name in after if name in before and after[name][1] != before[name][1]]
        gone = [f"self.{name}" for name in before if name not in after]
        told += f"; it makes {', '.join(other)} differently, the live one is as it was" if other else ""
        yield told + (f"; it makes no {', '.join(gone)} any more, which stays" if gone else "")


def _stale_bases(roots: Iterable[nn.Module], namespace: Namespace) -> Iterator[str]:
    kinds = {type(module) for root in roots for module in root.modules()}
    for kind in kinds:
        for base in kind.__mro__[1:]:
            if base is not nn.Module and issubclass(base, nn.Module) and _newer(base, namespace):
                yield (
                    f"{kind.__qualname__} still inherits from the old {base.__qualname__}; run the cell that "
                    f"defines {kind.__qualname__} again, and reload once more"
                )


def _assigned_before(old: type, new: type) -> dict[str, tuple[bool, str]] | None:
    """The same for the old class. It is read from a copy: its file may have the new source by now."""
    edited = _file_of(old) == _file_of(new) is not None and "__init__" in _changed_methods(old, new)
    return None if edited else _assigned(old)


def _file_of(cls: type) -> str | None:
    code = getattr(inspect.unwrap(cls.__init__), "__code__", None)  # type: ignore[misc]
    return code.co_filename if isinstance(code, CodeType) else None


def _assigned(cls: type) -> dict[str, tuple[bool, str]] | None:
    """What `__init__` sets on `self`: by name, whether on every path, and the source of the value. None if
    the source cannot be read; empty if `__init__` is torch's own."""
    function = inspect.unwrap(cls.__init__) if hasattr(cls.__init__, "__wrapped__") else cls.__init__  # type: ignore[misc]
    if not inspect.isfunction(function) or function.__module__.startswith("torch."):
        return {}
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TokenError, ValueError):
        return None
    if not isinstance(definition, ast.FunctionDef) or not definition.args.args:
        return None
    found: dict[str, tuple[bool, str]] = {}
    for statement, certain in _statements(definition.body, certain=True):
        for name, text in _sets(statement, definition.args.args[0].arg):
            found[name] = (certain or found.get(name, (False, ""))[0], text)
    return found


def _statements(body: Iterable[ast.stmt], *, certain: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """All statements of a function, and whether every path through the function reaches them."""
    for statement in body:
        yield statement, certain
        within = certain and isinstance(statement, (ast.With, ast.AsyncWith))
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, [])
            if not isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _statements(inner, certain=within)
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body, certain=False)


def _sets(statement: ast.stmt, self_name: str) -> Iterator[tuple[str, str]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            for each in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                if name := _attribute(each, self_name):
                    yield name, ast.unparse(statement.value)
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        if name := _attribute(statement.target, self_name):
            yield name, ast.unparse(statement.value)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        registers = ("register_buffer", "register_parameter", "register_module", "add_module")
        named = call.args and isinstance(call.args[0], ast.Constant)
        if named and _attribute(call.func, self_name) in registers:
            yield str(call.args[0].value), ", ".join(map(ast.unparse, call.args[1:]))  # type: ignore[attr-defined]


def _attribute(node: ast.expr, self_name: str) -> str | None:
    mine = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == self_name
    return node.attr if mine else None  # type: ignore[attr-defined]
