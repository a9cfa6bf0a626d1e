"""Checks the arguments of the package's own metrics against their declared types when a metric is made.
Without the check, a wrong argument would fail in the first step, or count something else."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ..errors import a_kind, wrong_arguments


def checks_arguments(kind: type) -> None:
    """Make a metric class of this package refuse arguments of another type than declared."""
    init = kind.__dict__.get("__init__")
    if init is None or not kind.__module__.startswith(__package__ + "."):
        return
    signature = inspect.signature(init)

    def check(metric: Any, args: Any, named: Any) -> None:
        try:
            given = signature.bind(metric, *args, **named).arguments
        except TypeError:  # Python reports a missing or unexpected one
            return
        for name, value in list(given.items())[1:]:
            _require(metric, kind, name, signature.parameters[name].annotation, value)

    @wraps(init)
    def checked(self: Any, *args: Any, **named: Any) -> None:
        try:
            init(self, *args, **named)
        except Exception as error:
            if not (isinstance(error, ValueError) and type(self).__name__ in str(error)):  # its own message
                check(self, args, named)
            raise
        check(self, args, named)

    kind.__init__ = checked  # type: ignore[misc]


def _require(metric: Any, kind: type, name: str, annotation: Any, value: Any) -> None:
    try:
        declared = eval(annotation, vars(sys.modules[kind.__module__]))
    except NameError:  # of a package that is loaded only for its own metrics
        return
    if not _fits(value, declared):
        about = _about(kind, name) or _about(type(metric), name)
        raise TypeError(
            f"{type(metric).__name__}({name}={value!r:.60}): give {_said(declared)}, and not "
            f"{'None' if value is None else a_kind(value)}" + (f" ({name}: {about})" if about else "")
        )


def _fits(value: Any, declared: Any) -> bool:
    origin = get_origin(declared)
    if declared is Any:
        return True
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(declared))
    if origin is Literal:
        return isinstance(value, str)  # the metric itself checks the value
    if origin is Callable:
        given = ["an argument"] * len(get_args(declared)[0])
        return callable(value) and not wrong_arguments(value, *given)
    if origin is tuple:
        return isinstance(value, (list, tuple))
    if origin is Sequence:
        return _is_several(value)
    if declared in (None, NoneType):
        return value is None
    if declared in (int, float):
        number = Integral if declared is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, declared)


def _is_several(value: Any) -> bool:
    if isinstance(value, (str, bytes)):
        return False
    try:
        iter(value)
    except TypeError:
        return False
    return True


def _said(declared: Any) -> str:
    origin = get_origin(declared)
    if origin in (Union, UnionType):
        return " or ".join(_said(each) for each in get_args(declared))
    if origin is Literal:
        return " or ".join(repr(each) for each in get_args(declared))
    if origin is Callable:
        return f"a function of {'one argument' if get_args(declared)[0] else 'no argument'}"
    if origin in (Sequence, tuple):
        inner = {int: "numbers", float: "numbers", str: "names"}.get(get_args(declared)[0], "them")
        return f"a list of {inner}"
    plain = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", NoneType: "None"}
    return plain.get(declared) or a_kind(declared)


def _about(kind: type, name: str) -> str:
    """The argument's description in the docstring."""
    doc = inspect.getdoc(kind) or ""
    found = re.search(rf"^ +{name}: (.+(?:\n {{8,}}.+)*)", doc, re.MULTILINE)
    return "" if found is None else " ".join(found[1].split()).rstrip(".")
