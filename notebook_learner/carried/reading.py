"""Which names a function reads outside of itself, and whose code it is."""

from __future__ import annotations

import dis
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_LIBRARIES = tuple(
    {str(Path(sysconfig.get_path(name))) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_INSTALLED = ("site-packages", "dist-packages")


@lru_cache(4096)
def names_in(code: CodeType) -> tuple[str, ...]:
    """The global names that code reads or writes, also in the functions that it defines.

    >>> names_in(compile("def f(): return a + len(b.c)", "<example>", "exec"))
    ('a', 'len', 'b')
    """
    found = dict.fromkeys(each.argval for each in dis.get_instructions(code) if each.opname in _OF_GLOBALS)
    for inner in _inner(code):
        found |= dict.fromkeys(names_in(inner))
    return tuple(found)


@lru_cache(4096)
def attributes_in(code: CodeType) -> frozenset[str]:
    """The names of attributes, among others, that code uses."""
    return frozenset(code.co_names).union(*map(attributes_in, _inner(code)))


@lru_cache(4096)
def _imports_in(code: CodeType) -> frozenset[str]:
    found = {each.argval for each in dis.get_instructions(code) if each.opname == "IMPORT_NAME"}
    return frozenset(found).union(*map(_imports_in, _inner(code)))


def modules_of(function: FunctionType) -> Iterator[ModuleType]:
    """The modules that a function imports when it runs, or has in its closure."""
    for name in sorted(_imports_in(function.__code__)):
        if isinstance(module := sys.modules.get(name), ModuleType):
            yield module
    for cell in function.__closure__ or ():
        try:
            held = cell.cell_contents
        except ValueError:  # it is empty
            continue
        if isinstance(held, ModuleType):
            yield held


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))


def is_users_function(function: FunctionType) -> bool:
    """Whether the user wrote it: not Python, not a package that is installed, not we."""
    space = function.__globals__
    return _is_users(space.get("__name__", ""), space.get("__file__"))


def is_users_class(kind: type) -> bool:
    """Whether the user wrote the class."""
    module = sys.modules.get(kind.__module__)
    return _is_users(kind.__module__, getattr(module, "__file__", None))


def is_users_module(module: ModuleType) -> bool:
    """Whether the user wrote the module."""
    return _is_users(module.__name__, getattr(module, "__file__", None))


@lru_cache(4096)
def _is_users(name: str, file: str | None) -> bool:
    if name.split(".")[0] in sys.builtin_module_names or name.split(".")[0] == "notebook_learner":
        return False
    if file is None:  # a notebook's cell, or code that was made at run time; but not a module of C
        spec = getattr(sys.modules.get(name), "__spec__", None)
        return getattr(spec, "origin", None) not in ("built-in", "frozen")
    installed = any(part in _INSTALLED for part in Path(file).parts)
    return not (installed or file.startswith("<frozen") or file.startswith(_LIBRARIES))


def functions_of(kind: type) -> Iterator[FunctionType]:
    """The functions that a class of the user's defines, with those behind properties and the like."""
    for value in list(vars(kind).values()):
        yield from _behind(value)


def _behind(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType):
        yield value
    elif isinstance(value, (staticmethod, classmethod)):
        yield from _behind(value.__func__)
    elif isinstance(value, property):
        for each in (value.fget, value.fset):
            yield from _behind(each)
    elif isinstance(value, partial):
        yield from _behind(value.func)
    elif isinstance(value, MethodType):
        yield from _behind(value.__func__)
