"""`%%train` in a real JupyterLab: it trains, is edited and goes on, points at its lines, and is debugged."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import pytest
from debugger_page import DebuggerPage
from panel_page import PanelPage
from playwright.sync_api import TimeoutError, expect

SETUP = f"""
%load_ext notebook_learner
import copy, sys, time
sys.path.insert(0, {str(Path(__file__).parents[1] / "learner")!r})
import torch
import torch.nn.functional as F
from builder_support import adam, batches, net
from notebook_learner import LearnerBuilder
from notebook_learner.metric import Loss
torch.set_num_threads(1)
scale_of_the_output, ran = 2.0, []

def build(name, epochs=1, repeated=1):
    # No model that says how it trains, no loss, no step: the cell below is the step.
    model, data = net(), batches() * repeated
    return LearnerBuilder(name).metrics(Loss()).num_epochs(epochs).build(model, adam(model), None, data, data)
"""
BUILD_STRAIGHT = """
straight = build("straight")
by_hand = copy.deepcopy(straight.model)
optimizer = adam(by_hand)
"""
STRAIGHT = """%%train straight --epochs 1
x, target = batch
loss = F.cross_entropy(model(x) * scale_of_the_output, target)
"""
BY_HAND = """
for x, target in batches():
    optimizer.zero_grad()
    F.cross_entropy(by_hand(x) * scale_of_the_output, target).backward()
    optimizer.step()
all(torch.equal(a, b) for a, b in zip(straight.model.parameters(), by_hand.parameters(), strict=True))
"""
EDITED = """%%train edited
x, target = batch
loss = F.cross_entropy(model(x), target)
ran.append("first")
time.sleep(0.005)
"""
MARKS = '[(mark.step, mark.text) for mark in edited.history.marks if mark.kind == "edited"]'
RAN = "[(body, ran.index(body), ran.count(body)) for body in dict.fromkeys(ran)], edited.position.step"
FAILING = """%%train failing
x, target = batch

output = model(x)
checked = 1 / (2 - step)
loss = F.cross_entropy(output, target)
"""
STOPPED = """%%train stopped --steps 2
x, target = batch
output = model(x)
scaled = 2 * output
loss = F.cross_entropy(scaled, target)
"""
VALID = """%%valid stopped
x, target = batch
scaled = 3 * model(x)
loss = F.cross_entropy(scaled, target)
"""
CELLS = {
    "setup": SETUP,
    "build straight": BUILD_STRAIGHT,
    "straight": STRAIGHT,
    "by hand": BY_HAND,
    "build edited": "edited = build('edited', repeated=500)",
    "edited": EDITED,
    "ask": "",
    "build failing": "failing = build('failing')",
    "failing": FAILING,
    "typed": "",
    "help": "%%train?",
    "build stopped": "stopped = build('stopped')",
    "stopped": STOPPED,
    "valid": VALID,
    "to the end": "%train stopped",
}


@pytest.fixture(scope="module")
def page(module_notebook):
    page = module_notebook(list(CELLS.values()))
    assert page.result(0) == ""
    return page


def number(cell):
    return list(CELLS).index(cell)


def result(page, cell):
    return page.result(number(cell))


def ask(page, code):
    page.type(number("ask"), code)
    return result(page, "ask")


def test_a_cell_is_the_step_and_trains_to_the_bits_of_a_loop_by_hand(page):
    result(page, "build straight")
    page.run(number("straight"))
    panel = PanelPage(page, number("straight"))
    panel.wait_status("finished")
    panel.wait_points(4)
    page.wait_idle()
    assert result(page, "by hand") == "True"


@pytest.mark.soak
def test_a_cell_edited_while_paused_goes_on_from_that_step_with_the_new_body(page):
    result(page, "build edited")
    cell = number("edited")
    panel = PanelPage(page, cell)
    page.run(cell)
    panel.wait_status("running")
    panel.wait_more_points_than(10)
    panel.click("Pause")
    page.wait_idle()
    panel.wait_status("paused")
    paused_at = int(ask(page, "edited.position.step"))
    assert paused_at >= 10

    page.type(cell, EDITED.replace("first", "second"))
    page.press("Control+Enter")
    panel.wait_status("running")
    panel.wait_more_points_than(paused_at + 10)
    page.tool("Interrupt the kernel").click()
    page.wait_idle()

    panel.wait_status("paused")
    assert "KeyboardInterrupt" not in page.output_text(cell)
    first, rest = f"('first', 0, {paused_at})", f"('second', {paused_at}, "
    told = ask(page, RAN)
    taken = re.fullmatch(rf"\(\[{re.escape(first)}, {re.escape(rest)}(\d+)\)\], (\d+)\)", told)
    assert taken, told
    assert paused_at + int(taken[1]) == int(taken[2])
    assert ask(page, MARKS) == f"[({paused_at}, 'cell edited')]"
    expect(panel.log).to_contain_text("edited: cell edited")
    assert f"paused at epoch 1, train, step {paused_at} of 2000 · cell edited" in words_over(panel)


def words_over(panel):
    """What the plot says of its marks where a pointer goes across it, from left to right."""
    said = set()
    over = panel.plot.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    for x in range(0, int(box["width"]), 5):  # a mark speaks up within 6 pixels
        panel.notebook.page.mouse.move(box["x"] + x, box["y"] + box["height"] / 2)
        said.add(panel.region.locator(".nl-read-marks").inner_text())
    return said


def test_an_error_names_the_line_of_the_cell_and_shows_it(page):
    result(page, "build failing")
    shown = result(page, "failing")
    assert re.search(r"^-+> 5 checked = 1 / \(2 - step\)$", shown, re.MULTILINE), shown
    assert re.search(r"^Cell In\[\d+\], line 5$", shown, re.MULTILINE), shown
    assert re.search("^ZeroDivisionError: division by zero$", shown, re.MULTILINE), shown
    PanelPage(page, number("failing")).wait_status("failed")


@pytest.mark.parametrize(
    ("typed", "added"),
    [
        ("%%train\nloss = scale_of_th", "e_output"),
        ("%%train\nloss = F.cross_ent", "ropy"),
        ("%%train --unt", "il"),
        ("%%train --output classi", "fication"),
        ("%%train strai", "ght"),
    ],
    ids=["name", "attribute", "option", "choice", "learner"],
)
def test_tab_completes_names_in_a_body_and_what_stands_above_it(page, typed, added):
    result(page, "build straight")
    cell = number("typed")
    page.type(cell, typed)
    offered = page.page.locator(".jp-Completer-item").first
    for _ in range(20):  # an answer that takes longer than a second, JupyterLab throws away
        page.press("Tab")
        with suppress(TimeoutError):
            offered.wait_for(timeout=3000)
            break
    expect(offered).to_be_visible()
    page.press("Enter")  # the first one that is offered
    # A letter, so that it is the choice that has come to its end, and the cursor stands behind it.
    page.page.locator(".jp-Completer").wait_for(state="hidden")
    page.press("x")
    last = typed.splitlines()[-1]
    expect(page.editor(cell).locator(".cm-line").last).to_have_text(f"{last}{added}x")


def test_help_shows_what_the_magic_takes(page):
    page.run(number("help"))
    page.wait_output(number("help"), "--until EXPR")
    page.wait_output(number("help"), "Train with this cell: its body is the training step.")


# The visual debugger -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def debugger(page):
    # On for good: JupyterLab takes no notice of a click on the bug that comes right after it was put off.
    debugger = DebuggerPage(page)
    debugger.switch_on()
    return debugger


@pytest.mark.soak
def test_the_visual_debugger_stops_in_a_body_at_each_step_and_steps_on_in_it(page, debugger):
    result(page, "build stopped")
    train = number("stopped")
    debugger.click_gutter(train, line=4)
    debugger.wait_breakpoints(1)
    page.run(train)
    debugger.wait_stop("[*]", 4)
    debugger.wait_variable("step", "0")
    expect(debugger.highlighted(train)).to_have_text("scaled = 2 * output")
    seen = debugger.variables()
    assert {"x", "target", "output", "batch", "model", "learner", "epoch"} <= seen
    assert not {"scaled", "loss"} & seen
    page.screenshot("train-cell-in-the-debugger")

    debugger.click("Next")
    debugger.wait_stop("[*]", 5)
    debugger.wait_variable("scaled", "Tensor")

    debugger.click("Continue")
    debugger.wait_stop("[*]", 4)
    debugger.wait_variable("step", "1")
    debugger.click("Continue")
    page.wait_idle()
    assert "2 steps taken" in page.output_text(train)

    debugger.click_gutter(train, line=4)
    debugger.wait_breakpoints(0)
    page.run(train)
    page.wait_idle()
    assert ask(page, "stopped.position.iteration, stopped.status") == "(4, 'paused')"


@pytest.mark.soak
def test_the_visual_debugger_stops_in_a_validation_cell_that_another_cell_runs(page, debugger):
    result(page, "build stopped")
    valid = number("valid")
    result(page, "valid")
    result(page, "stopped")
    debugger.click_gutter(valid, line=3)  # in a body that is in use by now
    debugger.wait_breakpoints(1)
    page.run(number("to the end"))
    debugger.wait_stop(page.prompt(valid), 3)
    debugger.wait_variable("target", "Tensor")
    expect(debugger.highlighted(valid)).to_have_text("scaled = 3 * model(x)")
    debugger.click_gutter(valid, line=3)
    debugger.wait_breakpoints(0)
    debugger.click("Continue")
    page.wait_idle()
    assert ask(page, "stopped.status") == "'finished'"
