"""The renderer for a real terminal: a live display during training, a table at the end."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich import get_console
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..event import EpochEnded, Evaluated, Event, Notice, RunOpened, SetProgress, StatusChanged
from .frame import LAST, LEVEL_STYLES, STATUS_STYLES, Frame, frame, notice_text
from .summary import EpochRows, evaluation, news, tour, whereabouts
from .tally import Tally
from .text import encodable, number, one_line


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


INTERVAL = 0.25
"""Seconds between refreshes, at least."""
IDLE_PER_COST = 200
"""After a refresh, the display waits this many times as long as the refresh took. So it takes at most 0.5 %
of the time, also on a slow terminal."""


class TerminalRenderer:
    """Shows progress, rates and metrics in a live display, updated four times a second at most.

    The training's prints, and one line per epoch, appear above the display, and stay there. When the run
    pauses, fails, stops or finishes, one line that says so and the summary replace the display. A training in
    the background of a Python with a prompt gets the lines alone.

    Args:
        console: the rich console to draw on; default: rich's own.

    The display has no thread: an event draws it. It is also removed at the end of the process, so that a
    crash leaves the terminal in order.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = get_console() if console is None else console
        self._redirect = Redirect(self._console)
        self._tally = Tally()
        self._rows = EpochRows()
        self._live: Live | None = None
        self._next = 0.0
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return "TerminalRenderer()"

    def handle(self, event: Event, /) -> None:
        """Take one event, and draw if the interval is over."""
        self._tally.handle(event)
        try:
            match event:
                case StatusChanged(status="running"):
                    self._open()
                case StatusChanged():
                    self._end(event)
                case RunOpened():
                    self.close()
                    self._rows.begin_anew()
                case EpochEnded(epoch=epoch):
                    for line in self._rows.next(self._tally, epoch):
                        self._print(Text(line), whole=False)
                    self._refresh()
                case Notice():
                    self._notice(event)
                case SetProgress():
                    self._tour(event)
                case Evaluated():
                    self._print(Text(evaluation(event)))
                case _:
                    self._refresh()
        except (OSError, ValueError, SystemExit):
            # The terminal is gone (on a broken pipe, rich exits the process). Training goes on.
            self._abandon()

    def close(self) -> None:
        """Remove the display and restore the terminal. The next run opens the display again."""
        live, self._live = self._live, None
        if live is None:
            return
        atexit.unregister(self.close)
        try:
            if os.getpid() == self._pid:  # a forked worker must not clear its parent's screen
                live.stop()
        finally:
            self._redirect.stop()

    def _open(self) -> None:
        if self._live is not None or _is_behind_a_prompt():
            return
        self._live = Live(
            self._frame(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        atexit.register(self.close)
        self._redirect.start()
        self._live.start(refresh=True)
        self._next = time.monotonic() + INTERVAL

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._live is None or now < self._next:
            return
        self._live.update(self._frame(), refresh=True)
        done = time.monotonic()
        self._next = done + max(INTERVAL, IDLE_PER_COST * (done - now))

    def _tour(self, event: SetProgress) -> None:
        """Show the progress of an evaluation on other data, or of a replay, in one line that changes."""
        if event.over and self._tally.status != "running":
            self.close()
            return
        self._open()
        self._refresh()

    def _frame(self) -> Frame | Text:
        size = self._console.size
        if self._tally.tour is not None:
            line = Text(encodable(tour(self._tally.tour), self._console.encoding), no_wrap=True)
            line.truncate(size.width, overflow="ellipsis")
            return line
        return frame(self._tally, size.width, size.height, self._console.encoding)

    def _abandon(self) -> None:
        try:
            self.close()
        except (OSError, ValueError, SystemExit):
            self._live = None

    def _end(self, event: StatusChanged) -> None:
        self.close()
        if event.status == "ready":
            return
        self._print(self._ending(event))
        self._summary()
        self._rows.begin_anew()

    def _ending(self, event: StatusChanged) -> Text:
        line = Text(event.status, style=STATUS_STYLES[event.status])
        line.append(whereabouts(self._tally), style="not bold default")
        if event.status == "paused":
            line.append(self._values(), style="not bold dim default")
        return line

    def _values(self) -> str:
        """The latest values of the paused split, which the display showed."""
        tally = self._tally
        plotted = [name for name in tally.names() if (info := tally.info(name, tally.split)) and info.plotted]
        values = [(name, tally.last(name, tally.split)) for name in plotted] if tally.step else []
        texts = [
            f"{one_line(name)} {number(value, one_line(tally.unit(name)))}"
            for name, value in values
            if value is not None
        ]
        return f" · {LAST}: {' · '.join(texts)}" if texts else ""

    def _notice(self, notice: Notice) -> None:
        """Print warnings and errors above the display, where they stay; show other notices in the display."""
        if self._live is None or notice.level != "info":
            self._print(Text(notice_text(notice), style=LEVEL_STYLES[notice.level]))
            self._tally.notices.pop()
        self._refresh()

    def _summary(self) -> None:
        summary = news(self._tally)
        if summary is None:
            return
        if self._console.encoding.lower().startswith("utf"):
            self._console.print("", summary, "", sep="\n")
        else:
            self._print(Text(f"\n{summary}\n"))

    def _print(self, text: Text, *, whole: bool = True) -> None:
        text.plain = encodable(text.plain, self._console.encoding)
        if whole:
            self._console.print(text, soft_wrap=True)
        else:
            self._console.print(text, no_wrap=True, overflow="ellipsis")


def _is_behind_a_prompt() -> bool:
    """Whether this is the training in the background (`start()`) of a Python with a prompt: a display that
    moves would paint over what the user types."""
    if threading.current_thread() is threading.main_thread():
        return False
    ipython = sys.modules.get("IPython")
    asks = getattr(ipython, "get_ipython", lambda: None)()  # another thread may be importing it
    return asks is not None or hasattr(sys, "ps1")
