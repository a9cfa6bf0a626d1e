"""What is done before a signal ends the process: training pauses and is saved, a write comes to its end.

A cluster that wants its machine back sends SIGTERM, a terminal that is closed SIGHUP. What is at work then is
asked to stand; when the last of it is over, the process ends by that very signal, as a shell or a scheduler
expects (143 or 129). A second SIGTERM ends it at once. A second SIGHUP does not: a closed terminal sends it
twice, from the shell and from the kernel.

Python tells only the main thread of a signal, and only that one may say what is done then. So the handlers
are put in where the main thread begins something, and taken back where it comes by and nothing is at work.
With nothing at work they end the process at once, as Python does. A handler of the user's own stays, and so
does a signal that is ignored (nohup).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

Stand = Callable[[], object]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_PATIENCE = 5.0
"""Seconds after which the process ends without its main thread, which is busy outside of Python."""

_at_work: list[Stand] = []
_blocks = 0
"""How many blocks of the main thread are at work: within one it waits for no others."""
_told: int | None = None
"""The signal that wants the process to end."""


def begin(stand: Stand = lambda: None) -> Stand:
    """Something begins that the end of the process is to wait for; what is returned goes to `finish`.

    Args:
        stand: called by the signal's handler, so it takes no lock: what is at work is to stand soon.
    """
    if _is_main():
        for signum in _SIGNALS:
            if signal.getsignal(signum) is signal.SIG_DFL:
                signal.signal(signum, _handle)

    def asked() -> object:
        return stand()

    _at_work.append(asked)  # last: an interrupt in between leaves nothing behind that never ends
    if _told is not None:
        stand()
    return asked


def finish(begun: Stand) -> None:
    """It is over. Where a signal waits for it, and for nothing else, the process ends here."""
    _at_work.remove(begun)
    if _is_main():
        rest()
    elif _told is not None and not _at_work:
        _end(_told)


def remind() -> None:
    """Ask all that is at work again, where a signal waits for it."""
    if _told is not None:
        for stand in tuple(_at_work):
            stand()


def rest() -> None:
    """The main thread comes by. Where a signal waits for others, it goes no further."""
    if not _is_main() or _blocks:
        return
    while _told is not None:
        with suppress(Exception):  # torch raises from a handler where the signal has ended a loader's worker
            if not _at_work:
                _end(_told)
            time.sleep(0.02)
    if not _at_work:
        for signum in _SIGNALS:
            if signal.getsignal(signum) is _handle:
                signal.signal(signum, signal.SIG_DFL)


@contextmanager
def awaited(stand: Stand = lambda: None) -> Iterator[None]:
    """The end of the process waits for this block."""
    global _blocks
    mine = _is_main()
    begun = begin(stand)
    try:
        _blocks += mine
        yield
    finally:
        _blocks -= mine
        finish(begun)


def why() -> str:
    """What has told the process to end, for people; nothing where nothing has."""
    return "" if _told is None else f"told to end by {signal.Signals(_told).name}"


def _handle(signum: int, frame: FrameType | None) -> None:
    global _told
    if not _at_work:
        _end(signum)
    if signum == signal.SIGTERM:  # a second one needs no handler, whatever the main thread does then
        signal.signal(signum, signal.SIG_DFL)
    if _told is None:
        _told = signum
    remind()


def _end(signum: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a terminal that is gone takes nothing
            stream.flush()
    if _is_main():
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    time.sleep(_PATIENCE)  # the main thread hears of it
    os._exit(128 + signum)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _forget() -> None:
    """What was at work in the parent is not in a process that was forked from it."""
    global _told, _blocks
    _told, _blocks = None, 0
    _at_work.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
