"""The messages that wait for a kernel's main thread, and how to take some of them out.

This uses private attributes of ipykernel. They were read in its releases 6.17 to 7.4, and the tests cover
that range. A missing attribute raises an error, and then nothing is served.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable
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

    def next(self) -> list[Any] | None:
        """Take out the next message to serve and return its frames; all others stay, in order."""

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


def find_inbox(kernel: Any) -> Inbox:
    """The inbox of this kernel.

    Raises:
        AttributeError: this kernel is unlike all known ones.
    """
    if getattr(kernel, "shell_channel_thread", None) is not None:
        return ChannelInbox(kernel)
    return QueueInbox(kernel)


class ChannelInbox:
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


class QueueInbox:
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
