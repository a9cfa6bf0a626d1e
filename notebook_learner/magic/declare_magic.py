"""One typed decorator for IPython's decorators: a magic's name and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core import magic as core
from IPython.core import magic_arguments as parsing

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
