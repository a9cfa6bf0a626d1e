"""The widget carries messages both ways, on the newest ipywidgets and on the old ones that Colab has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import INSTALLED, WITH_SUBSHELLS, Page, python_of

import notebook_learner

# Without the package itself, which would bring torch along.
SETUP = """
import sys, types
package = types.ModuleType("notebook_learner")
package.__path__ = [{package!r}]
sys.modules["notebook_learner"] = package
from notebook_learner.widget.panel_view import View
from notebook_learner.widget.wire import Message
heard = []
view = View(heard.append)
print(view.bundle()["application/vnd.jupyter.widget-view+json"]["model_id"])
"""


@pytest.fixture(scope="module", params=[INSTALLED, "6.17.1"], ids=["newest", "Colab's"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(python_of(request.param), tmp_path_factory.mktemp("kernel"))
    yield page
    page.leave()


def shown(page: Page) -> str:
    """A cell shows a view; the name of its model."""
    cell = page.begin(SETUP.format(package=str(Path(notebook_learner.__file__).parent)))
    page.end(cell)
    assert page.error(cell) is None
    return page.text(cell).strip()


def test_a_view_opens_tells_and_hears(page: Page) -> None:
    model = shown(page)
    sent = [m["content"] for m in page.heard if m["msg_type"] == "comm_open"]
    opened = [content for content in sent if content["comm_id"] == model]
    state = opened[0]["data"]["state"]
    script = state["_esm"].replace("http://www.w3.org/2000/svg", "")  # a name of SVG, which nobody loads
    assert "uplot" in script.lower() and "://" not in script
    assert ".nl-" in state["_css"]

    told = page.begin('view.send(Message({"type": "delta", "seq": 1}, (b"\\1\\2", b"\\3")))')
    page.end(told)
    messages = [m for m in page.heard if m["msg_type"] == "comm_msg" and m["parent_header"]["msg_id"] == told]
    custom = [m for m in messages if m["content"]["data"].get("method") == "custom"]
    assert [m["content"]["data"]["content"] for m in custom] == [{"type": "delta", "seq": 1}]
    assert [bytes(buffer) for buffer in custom[0]["buffers"]] == [b"\1\2", b"\3"]

    page.end(page.tell(model, {"method": "custom", "content": {"cmd": "hello", "args": {}}}))
    assert page.run("print(heard)") == "[{'cmd': 'hello', 'args': {}}]\n"
    closed = page.begin("view.close()")
    page.end(closed)
    assert model in [content["comm_id"] for content in page.of(closed, "comm_close")]


@pytest.mark.parametrize("page", WITH_SUBSHELLS, indirect=True)
def test_a_message_is_handled_where_the_page_asks_for_it(page: Page) -> None:
    model, subshell = shown(page), page.new_subshell()
    page.run("import threading\nview.send(Message({}))")
    where = "heard[:] = [threading.current_thread() is threading.main_thread()]"
    page.run(f"view._widget.on_msg(lambda *message: exec({where!r}, globals()))")
    for asked, on_main in (({"subshell_id": subshell}, False), ({}, True)):
        page.end(page.tell(model, {"method": "custom", "content": {}}, **asked))
        assert page.run("print(heard)") == f"[{on_main}]\n"


@pytest.mark.parametrize("page", WITH_SUBSHELLS, indirect=True)
def test_a_page_is_heard_after_the_thread_of_another_page_has_ended(page: Page) -> None:
    """As after a reload: JupyterLab asks for the widgets from a subshell, and ends that one."""
    model, subshell = shown(page), page.new_subshell()
    page.run("import threading\nsend = threading.Thread(target=view.send, args=(Message({}),))")
    from_a_thread = "send.start(); send.join()"
    page.end(page.ask("execute_request", {"code": from_a_thread, "silent": False}, subshell_id=subshell))
    page.end_subshell(subshell)
    page.end(page.tell(model, {"method": "custom", "content": {"cmd": "hello", "args": {}}}))
    assert page.run("print(heard)") == "[{'cmd': 'hello', 'args': {}}]\n"
