"""The messages that wait for a kernel's main thread: how to take some of them out, and handle them.

This uses private attributes of ipykernel. They were read in its releases 6.17 to 7.4, and the tests cover
that range. A missing attribute raises an error, and then nothing is served.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

SERVED = frozenset(
    {
        "comm_open",
        "comm_msg",
        "comm_close",
        "comm_info_request",
        "kernel_info_request",
        "complete_request",
        "inspect_request",
        "history_request",
    }
)
"""The messages that are handled between two steps: questions, and messages of widgets. Cells are never among
them: each runs when the one before it is over."""


class Inbox(Protocol):
    """Messages that arrived for the main thread while it computes. Only the main thread may use it."""

    def open(self) -> None:
        """Begin to look."""

    def has_news(self) -> bool:
        """Whether a message came since `next` last returned None; takes about 1 us."""

    def next(self) -> Any:
        """Take out the next message to serve and return it, or None; all others stay, in order."""

    def aside(self) -> AbstractContextManager[None]:
        """A context in which messages are handled, and the running cell does not notice."""

    def handle(self, message: Any) -> None:
        """Let the kernel handle a message that was taken out."""

    def close(self) -> None:
        """Give the messages that are left to the kernel, in order."""


def kind_of(kernel: Any, frames: list[Any]) -> str:
    """The type of a message; "" for an invalid message, which the kernel itself reports when it gets it."""
    try:
        return str(_header(kernel.session, frames)["msg_type"])
    except Exception:
        return ""


def _header(session: Any, frames: list[Any]) -> dict[str, Any]:
    # The signature is not checked here: the kernel checks it when it dispatches the message.
    _, parts = session.feed_identities(frames, copy=False)
    header: dict[str, Any] = session.unpack(parts[1].bytes)  # parts: signature, header, parent, ...
    return header


def find_inbox(kernel: Any) -> ChannelInbox | QueueInbox:
    """The inbox of this kernel.

    Raises:
        AttributeError: this kernel is unlike all known ones.
    """
    if getattr(kernel, "shell_channel_thread", None) is not None:
        return ChannelInbox(kernel)
    return QueueInbox(kernel)


class KernelInbox:
    """How ipykernel handles what was taken out of either inbox below."""

    _kernel: Any

    @contextmanager
    def aside(self) -> Iterator[None]:
        with _same_parent(self._kernel), _without_hooks(self._kernel):
            yield

    def handle(self, message: Any) -> None:
        _drive(self._kernel.dispatch_shell(message))


class ChannelInbox(KernelInbox):
    """The inbox of ipykernel 7.

    There, a thread reads the shell channel, finds the (sub)shell of each message, and sends the message
    through a pair of sockets. This class reads the main thread's end of its pair, so it never gets a message
    for a subshell.
    """

    def __init__(self, kernel: Any) -> None:
        import zmq

        manager = kernel.shell_channel_thread.manager
        self._kernel = kernel
        self._stream: Any = manager.get_shell_channel_to_subshell_pair(None).to_stream
        self._deliver: Callable[[list[Any]], Any] = self._stream._recv_callback
        self._kept: deque[list[Any]] = deque()
        self._starting: set[asyncio.Future[Any]] = set()
        self._events, self._readable, self._at_once = zmq.EVENTS, zmq.POLLIN, zmq.NOBLOCK

    def open(self) -> None:
        if self._stream._recv_callback != self._in_order:
            self._deliver = self._stream._recv_callback

    def has_news(self) -> bool:
        socket = self._stream.socket  # None once the kernel shuts down, perhaps while a cell trains
        return socket is not None and bool(socket.get(self._events) & self._readable)

    def next(self) -> list[Any] | None:
        while self.has_news():
            frames: list[Any] = self._stream.socket.recv_multipart(self._at_once, copy=False)
            if kind_of(self._kernel, frames) in SERVED:
                return frames
            self._kept.append(frames)
        return None

    def close(self) -> None:
        # on_recv() also checks the socket again: the event loop gets one signal for a message, when it
        # arrives, and has_news() may have used that up.
        if not self._kept:
            self._stream.on_recv(self._deliver, copy=False)
            return
        # The cell may run for long, and new messages must not overtake the kept ones: the first callback
        # of the event loop delivers the kept ones.
        self._stream.on_recv(self._in_order, copy=False)
        self._stream.io_loop.add_callback(self._release)

    def _in_order(self, frames: list[Any]) -> Any:
        self._release()
        return self._deliver(frames)

    def _release(self) -> None:
        if self._stream._recv_callback == self._in_order:
            self._stream.on_recv(self._deliver, copy=False)
        while self._kept:
            handling = self._deliver(self._kept.popleft())
            if inspect.isawaitable(handling):
                task = asyncio.ensure_future(handling)
                self._starting.add(task)  # the event loop has only weak references to tasks
                task.add_done_callback(self._starting.discard)


class QueueInbox(KernelInbox):
    """The inbox of ipykernel 6: the main thread itself reads the shell channel into a queue of work."""

    def __init__(self, kernel: Any) -> None:
        import zmq

        self._kernel = kernel
        self._stream: Any = kernel.shell_stream
        self._queue: Any = kernel.msg_queue
        self._known = -1
        self._events, self._readable = zmq.EVENTS, zmq.POLLIN

    def open(self) -> None:
        self._known = -1

    def has_news(self) -> bool:
        socket = self._stream.socket
        if socket is None:
            return False
        return bool(socket.get(self._events) & self._readable) or self._queue.qsize() != self._known

    def next(self) -> list[Any] | None:
        self._stream.flush(self._readable)
        # With get and put, so that the queue's counters stay right; the other messages keep their order.
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        found = next((item for item in waiting if self._is_served(item)), None)
        for item in waiting:
            if item is not found:
                self._queue.put_nowait(item)
        if found is None:
            self._known = self._queue.qsize()
            return None
        self._known = -1  # there may be more messages
        frames: list[Any] = found[-1][0]
        return frames

    def close(self) -> None:
        self._stream.flush(self._readable)  # wakes the event loop: has_news() may have used up its signal

    def _is_served(self, item: Any) -> bool:
        # An item is (number, function, arguments); items with another function are the kernel's own work.
        _, function, arguments = item
        if function != self._kernel.dispatch_shell or len(arguments) != 1:
            return False
        return kind_of(self._kernel, arguments[0]) in SERVED


# ------------------------------------------------------------------------------------------ one test of all


def tested_inbox(kernel: Any) -> Inbox:
    """Return the kernel's inbox after one test of all that serving needs; raise an error if a test fails."""
    import zmq

    inbox = find_inbox(kernel)
    frames = [zmq.Frame(part) for part in kernel.session.serialize(kernel.session.msg("comm_info_request"))]
    if kind_of(kernel, frames) != "comm_info_request":
        raise TypeError("its messages cannot be read")
    if kernel._parent_ident["shell"] is None or not isinstance(kernel.get_parent("shell"), dict):
        raise TypeError("it does not tell which cell runs")
    for name in ("dispatch_shell", "set_parent", "_publish_status", "pre_handler_hook", "post_handler_hook"):
        if not callable(getattr(kernel, name)):
            raise TypeError(f"its {name} is no function")
    inbox.open()
    inbox.has_news()
    inbox.close()  # wakes the event loop again, for a message whose signal this check may have used up
    return inbox


def delivers_on_subshells(kernel: Any) -> bool:
    """Whether a panel's message gets to the subshell that it asks for (in ipykernel 7.4 by `panel_view`)."""
    return bool(getattr(kernel, "_supports_kernel_subshells", False))


# ------------------------------------------------------------------------------- putting things back


@contextmanager
def _same_parent(kernel: Any) -> Iterator[None]:
    """Handle other messages without changing the present cell's prints, displays and busy status."""
    ident, parent = kernel._parent_ident["shell"], kernel.get_parent("shell")
    _flush_prints()  # older kernels choose the cell of a print only when they send it
    try:
        yield
    finally:
        _flush_prints()
        kernel.set_parent(ident, parent)
        kernel._publish_status("busy", "shell")


def _flush_prints() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


@contextmanager
def _without_hooks(kernel: Any) -> Iterator[None]:
    """Leave out the kernel's hooks around a handler: they replace the run's SIGINT handler by Python's."""
    names = ("pre_handler_hook", "post_handler_hook")
    own = {name: vars(kernel)[name] for name in names if name in vars(kernel)}
    try:
        for name in names:
            setattr(kernel, name, _nothing)
        yield
    finally:
        for name in names:
            vars(kernel).pop(name, None)
        vars(kernel).update(own)


def _nothing() -> None:
    pass


# --------------------------------------------------------------------------------------- coroutines

TURNS = 100


def _drive(handling: Any) -> None:
    """Run the kernel's coroutine now. The handlers of ipykernel never wait.

    If one does wait, the event loop finishes it when the cell is over.
    """
    if not inspect.iscoroutine(handling):
        return
    waits_for = None
    try:
        for _ in range(TURNS):
            waits_for = handling.send(None)
            if waits_for is not None:
                break
    except StopIteration:
        return
    _unfinished.add(rest := asyncio.ensure_future(_Rest(handling, waits_for)))
    rest.add_done_callback(_unfinished.discard)


_unfinished: set[asyncio.Future[Any]] = set()


class _Rest:
    """The rest of a coroutine, from the point where it began to wait."""

    def __init__(self, handling: Any, waits_for: Any) -> None:
        self._handling, self._waits_for = handling, waits_for

    def __await__(self) -> Generator[Any, Any, Any]:
        waits_for = self._waits_for
        while True:
            try:
                got = yield waits_for
            except BaseException as error:
                resume = (self._handling.throw, error)
            else:
                resume = (self._handling.send, got)
            try:
                waits_for = resume[0](resume[1])
            except StopIteration as end:
                return end.value
