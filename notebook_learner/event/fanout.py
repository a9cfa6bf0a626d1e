"""One event to everybody who listens."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..errors import LoggerError, remedy
from .sink import Sink
from .values import Event, Notice


class FanOut:
    """Passes every event to the recorders, then to the watchers.

    Recorders (history, log files) must lose nothing: each gets every event, and a failing one stops the
    run at this boundary with a `LoggerError`. It has then *taken* the event; do not emit it again.
    Watchers (a panel, a terminal) only show: a failing one is reported once and let go.

    Events come from one thread at a time; watchers may come and go from any.

    >>> class Tape(list):
    ...     handle = list.append
    >>> tape, screen = Tape(), Tape()
    >>> FanOut([tape], [screen]).emit(Notice("hello"))
    >>> tape == screen == [Notice("hello")]
    True
    """

    def __init__(
        self, recorders: Sequence[Sink], watchers: Sequence[Sink] = (), later: Sequence[Sink] = ()
    ) -> None:
        self.recorders = tuple(recorders)
        self._watchers = tuple(watchers)
        self._later = tuple(later)
        """Recorders that hear nothing until `open`."""
        self._early: list[Event] = []
        """What they have missed."""
        self._lock = threading.Lock()

    @property
    def watchers(self) -> tuple[Sink, ...]:
        """Who watches now."""
        return self._watchers

    def add(self, watcher: Sink) -> None:
        """Let somebody watch from the next event on; once, however often it is added."""
        with self._lock:
            if not any(known is watcher for known in self._watchers):
                self._watchers = (*self._watchers, watcher)

    def remove(self, watcher: Sink) -> None:
        """Let a watcher go; one that is not there is no mistake."""
        with self._lock:
            self._watchers = tuple(known for known in self._watchers if known is not watcher)

    def open(self, event: Event) -> None:
        """The run begins to be written down: with this event, then with what came before it."""
        later, self._later = self._later, ()
        early, self._early = self._early, []
        self.recorders = (*self.recorders, *later)
        self.emit(event)
        failures = [failure for each in early for failure in self._record(each, later)]
        if failures:
            raise _logger_error(failures) from failures[0][1]

    def take_in(self, recorders: Sequence[Sink], events: Sequence[Event]) -> None:
        """These hear of everything from here on, and first of what brings them here."""
        self.recorders = (*self.recorders, *recorders)
        failures = [failure for each in events for failure in self._record(each, recorders)]
        if failures:
            raise _logger_error(failures) from failures[0][1]

    def let_go(self, recorders: Sequence[Sink]) -> None:
        """These hear nothing more: what they write to is another run's now."""
        self.recorders = tuple(each for each in self.recorders if each not in recorders)

    def emit(self, event: Event) -> None:
        """Give an event to everybody, then raise what stopped a recorder."""
        if self._later:
            self._early.append(event)
        failures = self._record(event)
        notices = self._show(event)
        while notices:  # each round lets at least one watcher go, so this ends
            notice = notices.pop()
            failures += self._record(notice)
            notices += self._show(notice)
        if failures:
            raise _logger_error(failures) from failures[0][1]

    def _record(self, event: Event, recorders: Sequence[Sink] | None = None) -> list[tuple[Sink, Exception]]:
        failures: list[tuple[Sink, Exception]] = []
        urgent: BaseException | None = None
        for recorder in self.recorders if recorders is None else recorders:
            try:
                recorder.handle(event)
            except Exception as error:
                failures.append((recorder, error))
            except BaseException as interrupt:  # a second ■: the others get the event all the same
                urgent = interrupt
        if urgent is not None:
            raise urgent
        return failures

    def _show(self, event: Event) -> list[Notice]:
        notices = []
        for watcher in self._watchers:
            try:
                watcher.handle(event)
            except Exception as error:
                self.remove(watcher)
                notices.append(_farewell(watcher, error))
        return notices


def _farewell(watcher: Sink, error: Exception) -> Notice:
    return Notice(
        f"{type(watcher).__name__} failed ({_in_words(error)}) and shows nothing more; training goes on",
        "warning",
    )


def _logger_error(failures: Sequence[tuple[Sink, Exception]]) -> LoggerError:
    who = "; ".join(f"{type(sink).__name__} failed: {_in_words(error)}" for sink, error in failures)
    return LoggerError(
        f"{who}. Training stands at a step boundary and nothing is lost: what could not be written is "
        f"kept. {remedy(failures[0][1])} and call fit() again; it writes what is waiting, then goes on."
    )


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
