"""Show prints above the live display.

rich has such a proxy too, but its `flush` reads user text as markup (`print("[/x]", end="", flush=True)`
raises) and its stream has no encoding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text


class Above:
    """Replaces a stream, and passes whole lines to the console that owns the display."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console = console
        self._partial = ""
        self.rich_proxied_file = stream  # rich's name for the stream behind a proxy: its consoles use it

    def write(self, text: str) -> int:
        """Print the lines that are complete and keep the rest."""
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        lines, newline, self._partial = (self._partial + text).rpartition("\n")
        if newline:
            self._console.print(Text.from_ansi(lines, end="\n"), soft_wrap=True)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream. Half a line waits for its end: the display would be drawn over it."""
        self.rich_proxied_file.flush()

    def release(self) -> None:
        """Write the remaining half line to the stream itself."""
        if self._partial:
            self.rich_proxied_file.write(self._partial)
            self._partial = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


class Redirect:
    """Replaces stdout and stderr by `Above`, and restores them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._placed: dict[str, Above] = {}

    def start(self) -> None:
        """Redirect the streams that go to this terminal; an stderr that goes to a file stays as it is."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and not isinstance(stream, Above) and stream.isatty():
                self._placed[name] = Above(self._console, stream)
                setattr(sys, name, cast(TextIO, self._placed[name]))

    def stop(self) -> None:
        """Restore the streams, unless other code has replaced them."""
        for name, above in self._placed.items():
            if getattr(sys, name) is above:
                setattr(sys, name, above.rich_proxied_file)
            above.release()
        self._placed.clear()
