"""The widget itself: one model in the kernel, and as many views of it on pages as people open. It carries
messages and knows nothing of what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import ipywidgets  # type: ignore[import-untyped]

from .bundle import script, style
from .wire import Message

MIME = "application/vnd.jupyter.widget-view+json"


class _PanelWidget(anywidget.AnyWidget):
    # As text: a path would be watched for changes, which keeps every closed widget alive.
    _esm = script()
    _css = style()


_layouts: list[ipywidgets.Layout] = []


def _layout() -> ipywidgets.Layout:
    """One for all panels. ipywidgets keeps each until it is closed, and this one never is: when the last
    widget of a notebook is closed, JupyterLab ends the kernel's thread for widgets, and what that thread has
    not read by then becomes a complaint of asyncio's below some cell."""
    if not _layouts or _layouts[0].comm is None:  # Widget.close_all() closes it, too
        _layouts[:] = [ipywidgets.Layout()]
    return _layouts[0]


class View:
    """The panel's side of the wire.

    Args:
        receive: is given the content of every message of a page, in the kernel's main thread.
    """

    def __init__(self, receive: Callable[[object], None]) -> None:
        self._widget = _PanelWidget(layout=_layout())
        self._widget.on_msg(lambda widget, content, buffers: receive(content))

    def send(self, message: Message) -> None:
        """To all pages; from any thread."""
        self._widget.send(message.content, list(message.buffers))

    def bundle(self) -> dict[str, Any]:
        """What shows a view of it, for a cell's output."""
        model = self._widget.model_id
        return {MIME: {"version_major": 2, "version_minor": 0, "model_id": model}}

    def close(self) -> None:
        """Free what the kernel and the pages hold for it."""
        self._widget.close()
