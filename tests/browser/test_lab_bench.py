"""The bench itself: what the tests of the panel take for granted."""

from __future__ import annotations

import numpy as np
import pytest
from accessibility import axe
from lab import PATIENCE
from matplotlib import image

COUNTER = '''
import anywidget

class Counter(anywidget.AnyWidget):
    _esm = """
    function render({ model, el }) {
        const button = document.createElement("button");
        button.textContent = "count";
        button.addEventListener("click", () => model.send({ cmd: "count" }));
        const shown = document.createElement("output");
        model.on("msg:custom", (content) => { shown.textContent = `counted ${content.count}`; });
        el.append(button, shown);
        model.send({ cmd: "hello" });
    }
    export default { render };
    """
    count = 0

def heard(widget, content, buffers):
    widget.count += content["cmd"] == "count"
    widget.send({"count": widget.count})

counter = Counter()
counter.on_msg(heard)
counter
'''


def wait_counted(notebook, number):
    notebook.wait_output(0, f"counted {number}")


def opened(open_notebook):
    page = open_notebook([COUNTER, "counter.count", "print('something else')"])
    page.run(0)
    wait_counted(page, 0)
    return page


@pytest.fixture
def counter(notebook):
    return opened(notebook)


@pytest.fixture(scope="module")
def shared(module_notebook):
    return opened(module_notebook)


@pytest.mark.soak
def test_click_reaches_the_kernel_and_its_answer_the_page(shared):
    shared.panel(0).get_by_role("button", name="count").click()
    wait_counted(shared, 1)
    shared.run(1)
    shared.wait_output(1, "1")
    shared.wait_idle()
    assert shared.output_text(1) == "1"
    assert not shared.complaints


@pytest.mark.soak
def test_reload_brings_the_widget_back_with_what_the_kernel_holds(counter):
    counter.panel(0).get_by_role("button", name="count").click()
    wait_counted(counter, 1)
    counter.reload()
    wait_counted(counter, 1)
    counter.panel(0).get_by_role("button", name="count").click()
    wait_counted(counter, 2)


@pytest.mark.soak
def test_second_tab_shows_the_same_notebook_and_kernel(counter):
    other = counter.second_tab()
    wait_counted(other, 0)
    other.panel(0).get_by_role("button", name="count").click()
    wait_counted(counter, 1)
    wait_counted(other, 1)


@pytest.mark.soak
def test_theme_switches_without_a_reload_and_pictures_show_it(counter):
    counter.page.evaluate("window.same = true")
    brightness = []
    for name, light in (("Light", "true"), ("Dark", "false")):
        counter.theme(f"JupyterLab {name}")
        assert counter.page.locator("body").get_attribute("data-jp-theme-light") == light
        pixels = image.imread(counter.screenshot(f"bench-{name.lower()}"))[..., :3]
        assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20, "blank"
        brightness.append(pixels.mean())
    assert brightness[0] > 0.8 and brightness[1] < 0.4
    assert counter.page.evaluate("window.same")

    button = counter.panel(0).get_by_role("button", name="count")
    size = button.bounding_box()
    height, width, _ = image.imread(counter.screenshot("bench-button", button)).shape
    assert abs(width - size["width"]) <= 2 and abs(height - size["height"]) <= 2


@pytest.mark.soak
def test_interrupt_ends_the_cell_and_restart_forgets(notebook):
    page = notebook(
        ["import threading; print('began'); threading.Event().wait()", "x = 1", "print('x' in globals())"]
    )
    page.run_all()
    page.wait_output(0, "began")
    page.interrupt()
    page.wait_output(0, "KeyboardInterrupt")
    page.wait_idle()
    page.run(1)
    page.run(2)
    page.wait_output(2, "True")
    page.restart()
    page.run(2)
    page.wait_output(2, "False")


def test_axe_finds_a_button_without_a_name_and_lets_a_named_one_pass(shared):
    panel = shared.panel(0)
    panel.evaluate("(element) => { element.id = 'watched'; }")
    assert axe(shared.page, "#watched") == []
    panel.get_by_role("button").evaluate("(button) => { button.textContent = ''; }")
    (finding,) = axe(shared.page, "#watched")
    assert finding.startswith("button-name (critical)") and "<button>" in finding


def test_waiting_in_vain_tells_what_page_and_server_said(shared):
    shared.run(2)
    shared.wait_idle()
    shared.page.evaluate("console.error('the page has a grudge')")
    shared.page.set_default_timeout(200)
    with pytest.raises(AssertionError) as failure:
        shared.wait_output(2, "never")
    shared.page.set_default_timeout(1000 * PATIENCE)
    for part in ("cell 2 shows 'never'", "something else", "the page has a grudge", "ServerApp"):
        assert part in str(failure.value)
