"""What code does to be seen is left out while it runs again.

A step that is taken again prints, displays and draws nothing, and opens no debugger: the user has seen it
already. This holds for one thread. Other threads, and what the learner itself tells, are shown as usual.
"""

from __future__ import annotations

import bdb
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

E = TypeVar("E")
_FIGURE_MADE = f"{__name__}:figure_made"


class _Mine(threading.local):
    """What holds in this thread."""

    def __init__(self) -> None:
        self.depth = 0
        """How many blocks of `unheard` it is in."""
        self.aloud = 0
        """How many times something was to be shown all the same."""
        self.figures: list[Any] = []
        """Figures that were made unheard."""


class _Place(NamedTuple):
    """An attribute that has another function for a while."""

    owner: Any
    name: str
    before: Any
    own: bool
    """Whether the owner itself had it, and not its class."""
    instead: Any


_mine = _Mine()
_lock = threading.Lock()
_places: dict[tuple[int, str], _Place] = {}
_users = 0
"""How many threads are unheard now."""


def is_unheard() -> bool:
    """Whether what this thread prints is left out now."""
    return _mine.depth > 0 and not _mine.aloud


@contextmanager
def unheard() -> Iterator[None]:
    """Inside, this thread prints, displays and draws nothing, and no debugger opens in it. Errors are raised
    as usual.

    >>> with unheard():
    ...     print("not shown")
    >>> print("shown")
    shown
    """
    if _mine.depth or _mine.aloud:
        yield
        return
    _change()
    _mine.depth = 1
    try:
        with _untraced():
            yield
    finally:
        _mine.depth = 0
        _change_back()


@contextmanager
def heard(wanted: bool = True) -> Iterator[None]:
    """Inside, what this thread prints is shown, also in a block of `unheard` around it or within it.

    >>> with heard(), unheard():
    ...     print("shown")
    shown
    """
    _mine.aloud += wanted
    try:
        yield
    finally:
        _mine.aloud -= wanted


def aloud(tell: Callable[..., E]) -> Callable[..., E]:
    """The same function, but what it prints is shown.

    >>> with unheard():
    ...     aloud(print)("shown")
    shown
    """

    def told(*given: Any, **named: Any) -> E:
        with heard():
            return tell(*given, **named)

    return told


def figure_made(figure: Any) -> None:
    """Matplotlib calls it for each new figure: one that was made unheard is not shown at the cell's end."""
    if is_unheard():
        _mine.figures.append(figure)


@contextmanager
def _untraced() -> Iterator[None]:
    """Inside, JupyterLab's debugger does not stop this thread at the lines that the user has marked."""
    debugpy: Any = sys.modules.get("debugpy")
    traced = debugpy is not None and debugpy.is_client_connected()
    if traced:
        debugpy.trace_this_thread(False)
    try:
        yield
    finally:
        if traced:
            debugpy.trace_this_thread(True)


# What is put in place of what ------------------------------------------------------------------------


def _change() -> None:
    """Put functions that know unheard threads where there are none yet."""
    global _users
    with _lock:
        _users += 1
        for owner, name in _found():
            if owner is not None and (id(owner), name) not in _places:
                _put(owner, name)
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is not None and _FIGURE_MADE not in pyplot.rcParams["figure.hooks"]:
            pyplot.rcParams["figure.hooks"] = [*pyplot.rcParams["figure.hooks"], _FIGURE_MADE]


def _change_back() -> None:
    """Undo it with the last unheard thread, except where a step has put something else meanwhile."""
    global _users
    pyplot, figures, _mine.figures = sys.modules.get("matplotlib.pyplot"), _mine.figures, []
    if pyplot is not None:
        for each in figures:
            pyplot.close(each)
    with _lock:
        _users -= 1
        if _users:
            return
        for owner, name, before, own, instead in _places.values():
            if vars(owner).get(name) is instead:
                setattr(owner, name, before) if own else delattr(owner, name)
        _places.clear()
        if pyplot is not None:
            others = [each for each in pyplot.rcParams["figure.hooks"] if each != _FIGURE_MADE]
            pyplot.rcParams["figure.hooks"] = others


def _found() -> Iterator[tuple[Any, str]]:
    """Where output leaves a thread. A stream's own `write` is changed, and not `sys.stdout`: handlers of
    `logging` keep the stream, and a step may put another one there."""
    yield sys.stdout, "write"
    yield sys.stderr, "write"
    yield sys, "breakpointhook"
    yield bdb.Bdb, "set_trace"  # pdb's and IPython's come here
    ipython = sys.modules.get("IPython")
    publisher = getattr(ipython and ipython.get_ipython(), "display_pub", None)
    yield publisher, "publish"
    yield publisher, "clear_output"
    yield sys.modules.get("matplotlib.pyplot"), "show"
    for name in ("tqdm", "tqdm_notebook"):  # a bar that was made before keeps the stream's former `write`
        module = sys.modules.get("tqdm.std" if name == "tqdm" else "tqdm.notebook")
        yield getattr(module, name, None), "display"


def _put(owner: Any, name: str) -> None:
    before = getattr(owner, name)

    def instead(*given: Any, **named: Any) -> Any:
        if not is_unheard():
            return before(*given, **named)
        return len(given[0]) if name == "write" else None

    own = name in getattr(owner, "__dict__", ())
    try:
        setattr(owner, name, instead)
    except AttributeError:  # a stream that takes no attributes
        return
    _places[id(owner), name] = _Place(owner, name, before, own, instead)


def _begin_anew() -> None:
    """A forked child, such as a worker of a loader, has no thread that is unheard."""
    global _mine, _lock, _users
    _mine, _lock, _users = _Mine(), threading.Lock(), 0


os.register_at_fork(after_in_child=_begin_anew)
