"""Where a kernel keeps the messages that wait for its main thread, and how to take some of them out.

All of this is ipykernel's private business: the attributes named here were read in its releases 6.17 to 7.4,
and the tests go through that range. What cannot be found raises, and nothing is served then.
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
"""What is answered between two steps: questions, and messages of widgets. Never a cell: cells run in order,
each when the one before it is over."""


class Inbox(Protocol):
    """Messages that came for the main thread while it computes. Only the main thread may ask."""

    def open(self) -> None:
        """Begin to look."""

    def has_news(self) -> bool:
        """Whether something came since `next` had nothing more to give; about 1 us."""

    def next(self) -> list[Any] | None:
        """The frames of the next message to serve, taken out; all others stay, in their order."""

    def close(self) -> None:
        """Leave what is still there to the kernel, in order."""


def kind_of(kernel: Any, frames: list[Any]) -> str:
    """The type of a message, "" for what is none: the kernel complains about that when it gets it."""
    try:
        return str(_header(kernel.session, frames)["msg_type"])
    except Exception:
        return ""


def _header(session: Any, frames: list[Any]) -> dict[str, Any]:
    # The signature is not looked at: the kernel does so when the message is dispatched.
    _, parts = session.feed_identities(frames, copy=False)
    header: dict[str, Any] = session.unpack(parts[1].bytes)  # parts: signature, header, parent, ...
    return header


def find_inbox(kernel: Any) -> Inbox:
    """The inbox of this kernel.

    Raises:
        AttributeError: this kernel is made in another way than those that are known.
    """
    if getattr(kernel, "shell_channel_thread", None) is not None:
        return ChannelInbox(kernel)
    return QueueInbox(kernel)


class ChannelInbox:
    """ipykernel 7: a thread reads the shell channel, finds out which (sub)shell a message is for, and
    sends it through a pair of sockets. The end of the pair that belongs to the main thread is read here,
    so what is for a subshell never comes by."""

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
        socket = self._stream.socket  # None once the kernel shuts down, which may be while a cell trains
        return socket is not None and bool(socket.get(self._events) & self._readable)

    def next(self) -> list[Any] | None:
        while self.has_news():
            frames: list[Any] = self._stream.socket.recv_multipart(self._at_once, copy=False)
            if kind_of(self._kernel, frames) in SERVED:
                return frames
            self._kept.append(frames)
        return None

    def close(self) -> None:
        # on_recv() also looks at the socket again: the event loop hears of a message only once, when it
        # comes, and has_news() may have used that up.
        if not self._kept:
            self._stream.on_recv(self._deliver, copy=False)
            return
        # The cell may go on for long, and what comes meanwhile must not overtake what was kept: whoever
        # is called first by the event loop delivers the kept ones.
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
                self._starting.add(task)  # the event loop holds tasks by weak references only
                task.add_done_callback(self._starting.discard)


class QueueInbox:
    """ipykernel 6: the main thread itself reads the shell channel, into a queue of what to do next."""

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
        # Through get and put, which keep the queue's own books; the ones that stay keep their order.
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        found = next((item for item in waiting if self._is_served(item)), None)
        for item in waiting:
            if item is not found:
                self._queue.put_nowait(item)
        if found is None:
            self._known = self._queue.qsize()
            return None
        self._known = -1  # there may be more of them
        frames: list[Any] = found[-1][0]
        return frames

    def close(self) -> None:
        self._stream.flush(self._readable)  # and tells the event loop of what has_news() may have used up

    def _is_served(self, item: Any) -> bool:
        # An item is (number, function, arguments); other functions than this one are the kernel's own.
        _, function, arguments = item
        if function != self._kernel.dispatch_shell or len(arguments) != 1:
            return False
        return kind_of(self._kernel, arguments[0]) in SERVED
