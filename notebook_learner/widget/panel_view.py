"""The widget itself: one model in the kernel, with any number of views on pages.

It carries messages and does not interpret them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import ipywidgets  # type: ignore[import-untyped]

from .notebook import script, style
from .wire import Message

MIME = "application/vnd.jupyter.widget-view+json"


class _PanelWidget(anywidget.AnyWidget):
    # As text: anywidget would watch a path for changes, and that keeps every closed widget alive.
    _esm = script()
    _css = style()


_layouts: list[ipywidgets.Layout] = []


def _layout() -> ipywidgets.Layout:
    """The one layout of all panels. It is never closed.

    When the last widget of a notebook is closed, JupyterLab ends the kernel's thread for widgets. If that
    thread has unread messages, asyncio prints an error below some cell.
    """
    if not _layouts or _layouts[0].comm is None:  # Widget.close_all() closes it, too
        _layouts[:] = [ipywidgets.Layout()]
    return _layouts[0]


def _deliver_where_asked(comm: Any) -> None:
    """Bring a page's message to the (sub)shell that the message names, as ipykernel 7.0 to 7.3 do.

    ipykernel 7.4 brings it to the one whose message the kernel handled when the widget was last written to.
    A thread that writes, such as the panel's, has no message of its own: it counts as handling the latest one
    of all. A page that loads asks for its widgets from a subshell and ends that one, so ipykernel 7.4 could
    drop each later message of the page, and buttons did nothing.
    """
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, asked: asked


class View:
    """The panel's side of the wire.

    Args:
        receive: called with the content of every message of a page, on the kernel's main thread or, if the
            page asks for that, on the thread of a subshell.
    """

    def __init__(self, receive: Callable[[object], None]) -> None:
        self._widget = _PanelWidget(layout=_layout())
        self._widget.on_msg(lambda widget, content, buffers: receive(content))
        _deliver_where_asked(self._widget.comm)

    def send(self, message: Message) -> None:
        """Send a message to all pages. Any thread may call this."""
        self._widget.send(message.content, list(message.buffers))

    def bundle(self) -> dict[str, Any]:
        """Return the output of a cell that shows a view of the widget."""
        model = self._widget.model_id
        return {MIME: {"version_major": 2, "version_minor": 0, "model_id": model}}

    def close(self) -> None:
        """Free the widget's memory in the kernel and on the pages."""
        self._widget.close()
