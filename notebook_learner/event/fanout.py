"""Passes each event to every listener."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from ..errors import LoggerError, remedy
from .values import Event, Notice


@runtime_checkable
class Sink(Protocol):
    """A listener. The training thread calls it, so it must return quickly.

    A sink handles the events it knows and ignores all others, so a new kind of event breaks no sink:

    >>> from notebook_learner.event import SplitEnded
    >>> class Beep:
    ...     def handle(self, event):
    ...         if isinstance(event, SplitEnded):
    ...             print("beep", event.finals["Loss"])
    >>> Beep().handle(SplitEnded(1, "train", 10, {"Loss": 0.5}))
    beep 0.5
    """

    def handle(self, event: Event, /) -> None:
        """Take one event."""


@runtime_checkable
class Display(Sink, Protocol):
    """A sink that also shows a page, on which users see and control the learner."""

    def attach(self, learner: Any, /) -> None:
        """Show this learner."""

    def show(self) -> None:
        """Appear below the cell that starts to train."""

    def blocking(self) -> AbstractContextManager[Callable[[], None]]:
        """Wrap the time in which a cell trains or waits, so the process receives no messages from the page.
        Calling the value it yields lets these messages in; every event does so too."""
        ...

    def bundle(self) -> dict[str, Any]:
        """The MIME bundle that a notebook shows if the learner is the last line of a cell."""
        ...

    def freeze(self) -> None:
        """Keep only what works without a running process."""


class FanOut:
    """Passes every event to the recorders, then to the watchers.

    Recorders (history, log files) must lose nothing. Each gets every event. If one fails, the run stops at
    this boundary with a `LoggerError`. The recorder has then *taken* the event; do not emit it again.
    Watchers (a panel, a terminal) only show. If one fails, that is reported once, and it is removed.

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
        """Create it with recorders that get no event until `open`."""
        self._early: list[Event] = []
        """The events that the recorders have missed."""
        self._lock = threading.Lock()

    @property
    def watchers(self) -> tuple[Sink, ...]:
        """The current watchers."""
        return self._watchers

    def add(self, watcher: Sink) -> None:
        """Send this watcher every event from the next one on. Adding it twice has no effect."""
        with self._lock:
            if not any(known is watcher for known in self._watchers):
                self._watchers = (*self._watchers, watcher)

    def remove(self, watcher: Sink) -> None:
        """Remove a watcher, if it is there."""
        with self._lock:
            self._watchers = tuple(known for known in self._watchers if known is not watcher)

    def open(self, event: Event) -> None:
        """Start recording: send the recorders this event, then all events before it."""
        later, self._later = self._later, ()
        early, self._early = self._early, []
        self.recorders = (*self.recorders, *later)
        self.emit(event)
        failures = [failure for each in early for failure in self._record(each, later)]
        if failures:
            raise _logger_error(failures) from failures[0][1]

    def take_in(self, recorders: Sequence[Sink], events: Sequence[Event]) -> None:
        """Add recorders: they get these past events first, then every new one."""
        self.recorders = (*self.recorders, *recorders)
        failures = [failure for each in events for failure in self._record(each, recorders)]
        if failures:
            raise _logger_error(failures) from failures[0][1]

    def let_go(self, recorders: Sequence[Sink]) -> None:
        """Remove recorders, because another run now owns the files they write to."""
        self.recorders = tuple(each for each in self.recorders if each not in recorders)

    def emit(self, event: Event) -> None:
        """Give an event to every listener, then raise the error of a recorder that failed."""
        if self._later:
            self._early.append(event)
        failures = self._record(event)
        notices = self._show(event)
        while notices:  # each round removes at least one watcher, so this ends
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
            except BaseException as interrupt:  # a second ■: the other recorders still get the event
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
