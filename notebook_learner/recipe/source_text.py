"""The source text of what a run was given: steps, loss, classes of the model, cells of the notebook."""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache, partial
from tokenize import TokenError
from typing import Any

from torch import nn

LONGEST = 20_000
"""Characters of one function, class or cell that are kept."""
MOST_OF_CELLS = 100_000
"""Characters of all cells together: the latest are kept."""


def text_of(thing: Any) -> str | None:
    """The source text of a function or class that the user wrote; None of what is installed or has none.

    >>> text_of(text_of)[:11], text_of(print), text_of(nn.Linear)
    ('def text_of', None, None)
    """
    while isinstance(thing, partial):
        thing = thing.func
    cell = getattr(thing, "cell_text", None)
    if isinstance(cell, str):
        return cell[:LONGEST]
    thing = inspect.unwrap(thing) if callable(thing) else thing
    if not (inspect.isfunction(thing) or inspect.ismethod(thing) or inspect.isclass(thing)):
        thing = type(thing)
    if _is_installed(thing):
        return None
    try:
        text = _text_of_class(thing) if inspect.isclass(thing) else inspect.getsource(thing)
        return textwrap.dedent(text)[:LONGEST]
    except (OSError, TypeError, SyntaxError, TokenError):  # made by exec, or its file has gone, or changed
        return None


def _text_of_class(kind: type) -> str:
    """The text of a class, found without parsing its file.

    `inspect.getsource` parses it, up to Python 3.12. This runs in a thread, and while two threads parse, the
    other one, which may be the user's cell, can fail with a SystemError (python/cpython#106905).
    """
    lines, _ = inspect.findsource(sys.modules[kind.__module__])
    first = vars(kind).get("__firstlineno__") or _first_line_of(kind, lines)
    return "".join(inspect.getblock(lines[first - 1 :]))


def _first_line_of(kind: type, lines: list[str]) -> int:
    """The line of the class, or of its decorators: the last of its name that stands before its methods."""
    opening = re.compile(rf"\s*class\s+{kind.__name__}\b")
    starts = [number for number, line in enumerate(lines, 1) if opening.match(line)]
    methods = [getattr(each, "__func__", each) for each in vars(kind).values()]
    inside = [
        method.__code__.co_firstlineno
        for method in methods
        if inspect.isfunction(method) and method.__qualname__.rpartition(".")[0] == kind.__qualname__
        if method.__code__.co_filename == inspect.getfile(kind)  # not one that a dataclass made
    ]
    before = [start for start in starts if not inside or start <= min(inside)]
    if not before:
        raise OSError(f"no class {kind.__name__} in the file of its module")
    first = before[-1]
    while first > 1 and lines[first - 2].lstrip().startswith("@"):
        first -= 1
    return first


def kinds_in(model: nn.Module) -> list[type]:
    """The classes of a model's layers."""
    return [*{type(each): None for each in model.modules()}]


def classes_of(kinds: Iterable[type]) -> dict[str, str]:
    """The text of each class that the user wrote."""
    found = {kind.__qualname__: text_of(kind) for kind in kinds}
    return {name: text for name, text in found.items() if text is not None}


def _is_installed(thing: Any) -> bool:
    code = getattr(thing, "__code__", None)
    place = code.co_filename if code is not None else None
    if place is None:
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        if module is None or module.__name__ == "builtins":
            return module is not None
        place = getattr(module, "__file__", None)
    return place is not None and place.startswith(_folders_of_packages())


@cache
def _folders_of_packages() -> tuple[str, ...]:
    import sysconfig  # it loads a module of 300 us, when the first run begins

    return tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


# Cells -----------------------------------------------------------------------------------------------


def cell_now() -> int | None:
    """The number of the cell that runs; None outside a notebook."""
    shell = _shell()
    return None if shell is None else len(shell.history_manager.input_hist_raw) - 1


def cells_since(first: int | None) -> list[str]:
    """The text of the cells from this one on, without what they printed."""
    shell = _shell()
    if shell is None or first is None:
        return []
    cells = [str(cell)[:LONGEST] for cell in shell.history_manager.input_hist_raw[first:] if cell]
    return [*_latest(cells)][::-1]


def _latest(cells: list[str]) -> Iterator[str]:
    room = MOST_OF_CELLS
    for cell in reversed(cells):
        room -= len(cell)
        if room < 0:
            return
        yield cell


def _shell() -> Any:
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()  # another thread may be importing it
    return shell if getattr(shell, "history_manager", None) is not None else None
