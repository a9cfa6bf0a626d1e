"""Before a signal ends the process, training pauses and is saved, and a write is finished.

A cluster that wants its machine back sends SIGTERM; a closed terminal sends SIGHUP. The signal's handler asks
all running work to stop. When the last work has ended, the process ends by that same signal, as a shell or a
scheduler expects (143 or 129). A second SIGTERM ends it at once. A second SIGHUP does not: a closed terminal
sends it twice, from the shell and from the kernel.

In Python only the main thread gets signals, and only the main thread may set handlers. So the handlers are
set when the main thread begins some work, and removed when the main thread calls this module and no work
runs. If no work runs, they end the process at once, as Python does. A handler of the user stays, and so does
an ignored signal (nohup).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

Stand = Callable[[], object]

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_PATIENCE = 5.0
"""Seconds after which the process ends without its main thread, which is busy outside of Python."""

_at_work: list[Stand] = []
_blocks = 0
"""The number of the main thread's running blocks: within a block it waits for no other work."""
_told: int | None = None
"""The signal that asked the process to end."""


def begin(stand: Stand = lambda: None) -> Stand:
    """Begin work that the end of the process must wait for; pass the returned value to `finish`.

    Args:
        stand: asks the work to stop soon. The signal's handler calls it, so it must take no lock.
    """
    if _is_main():
        for signum in _SIGNALS:
            if signal.getsignal(signum) is signal.SIG_DFL:
                signal.signal(signum, _handle)

    def asked() -> object:
        return stand()

    _at_work.append(asked)  # last: so an interrupt in between leaves no work that never ends
    if _told is not None:
        stand()
    return asked


def finish(begun: Stand) -> None:
    """End the work. If a signal waits only for this work, the process ends here."""
    _at_work.remove(begun)
    if _is_main():
        rest()
    elif _told is not None and not _at_work:
        _end(_told)


def remind() -> None:
    """Ask all running work again to stop, if a signal waits for it."""
    if _told is not None:
        for stand in tuple(_at_work):
            stand()


def rest() -> None:
    """Called by the main thread: if a signal waits for other work, it goes no further."""
    if not _is_main() or _blocks:
        return
    while _told is not None:
        with suppress(Exception):  # torch raises in its handler if the signal has ended a loader's worker
            if not _at_work:
                _end(_told)
            time.sleep(0.02)
    if not _at_work:
        for signum in _SIGNALS:
            if signal.getsignal(signum) is _handle:
                signal.signal(signum, signal.SIG_DFL)


@contextmanager
def awaited(stand: Stand = lambda: None) -> Iterator[None]:
    """Let the end of the process wait for this block."""
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
    """The reason for which the process will end, as a text for people; empty without a signal."""
    return "" if _told is None else f"told to end by {signal.Signals(_told).name}"


def _handle(signum: int, frame: FrameType | None) -> None:
    global _told
    if not _at_work:
        _end(signum)
    if (
        signum == signal.SIGTERM
    ):  # a second one must end the process without a handler: the main thread may be busy
        signal.signal(signum, signal.SIG_DFL)
    if _told is None:
        _told = signum
        _spare_the_step()
    remind()


def _spare_the_step() -> None:
    """The signal may have ended a loader's workers, too. At their end torch raises an error wherever the main
    thread is. From now on it does so only while a loader waits for them: a running step can end."""
    if not hasattr(signal, "SIGCHLD"):
        return
    earlier = signal.getsignal(signal.SIGCHLD)
    if not callable(earlier):
        return

    def spared(signum: int, frame: FrameType | None) -> None:
        while True:
            try:
                earlier(signum, frame)
                return
            except RuntimeError as error:  # once a loader; a handler of the user's own comes after torch's
                if not _is_of_torch(error) or _is_loading(frame):
                    raise

    signal.signal(signal.SIGCHLD, spared)


def _is_of_torch(error: RuntimeError) -> bool:
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__") == "torch.utils.data._utils.signal_handling"


def _is_loading(frame: FrameType | None) -> bool:
    names = (each.f_globals.get("__name__") for each, _ in traceback.walk_stack(frame))
    return frame is not None and "torch.utils.data.dataloader" in names


def _end(signum: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a closed terminal takes no text
            stream.flush()
    if _is_main():
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    time.sleep(_PATIENCE)  # the main thread gets it
    os._exit(128 + signum)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _forget() -> None:
    """Forget the work of the parent: it does not run in a forked process."""
    global _told, _blocks
    _told, _blocks = None, 0
    _at_work.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
