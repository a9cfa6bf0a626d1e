"""Runs user code a second time, during a replay, without output and without stopping in a debugger."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

E = TypeVar("E")


class Unheard:
    """While it lasts, what this thread prints is not shown, and `breakpoint()` in it does not stop.

    Other threads print and stop as usual. Warnings and errors are shown.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._mute: _Mute | None = None
        self._hook: Any = None

    def __enter__(self) -> Unheard:
        self._hook = sys.breakpointhook
        sys.breakpointhook = self._break
        self._mute = _Mute(sys.stdout, self._thread)
        sys.stdout = self._mute
        return self

    def __exit__(self, *error: object) -> None:
        if sys.breakpointhook == self._break:  # otherwise a step has set another one
            sys.breakpointhook = self._hook
        if self._mute is not None and sys.stdout is self._mute:
            sys.stdout = self._mute.stream
        self._mute = None

    def aloud(self, tell: Callable[[E], None]) -> Callable[[E], None]:
        """The same function, but what it prints is shown."""

        def told(event: E) -> None:
            mute = self._mute
            if mute is None:
                return tell(event)
            mute.muted = False
            try:
                tell(event)
            finally:
                mute.muted = True

        return told

    def _break(self, *given: Any, **named: Any) -> Any:
        if threading.get_ident() != self._thread:
            return self._hook(*given, **named)


class _Mute:
    """A stream that ignores the writes of one thread."""

    def __init__(self, stream: Any, thread: int) -> None:
        self.stream = stream
        self.muted = True
        self._thread = thread

    def write(self, text: str) -> Any:
        if self.muted and threading.get_ident() == self._thread:
            return len(text)
        return self.stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
