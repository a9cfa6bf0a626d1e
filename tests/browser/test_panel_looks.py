"""The panel in a real JupyterLab: light and dark, wide and narrow, in each state; and by the keyboard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from accessibility import axe
from panel_page import PanelPage
from panel_room import check_room
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
from notebook_learner.breakpoint import GradNorm, LossSpike, NonFinite
from notebook_learner.metric import CudaMetric

class Miss(Metric):
    name = "Mean distance"

    def update(self, item):
        return item.loss.sqrt(), 1

def new(name, *hooks, **how):
    stamps.clear()
    every_step[:] = hooks
    return build(name, metrics=[Miss()], texts=[CudaMetric()], **how)

def fail():
    if len(stamps) == 70:
        raise RuntimeError("the batch of step 71 is not what the model takes")
"""
CELLS = {
    "setup": SETUP,
    "ready": "new('ready')",
    "running": "new('running', steps=5_000)",
    "paused": "new('paused', steps=40)",
    "inspected": """
learner = new('inspected', steps=60, poisoned=52)
learner.breakpoints.add(NonFinite())
learner.breakpoints.add(LossSpike(50), once=True)
learner.breakpoints.add(GradNorm(1000)).on = False
learner
""",
    "failed": "new('failed', fail, steps=60)",
    "finished": "new('finished', steps=40, epochs=2)",
    "keys": "new('keys')",
}
STATES = ("ready", "running", "paused", "inspected", "failed", "finished")
STATUS = {"inspected": "paused"}
"""Of those states that are not called by theirs."""
# The width of the window, and a height in which a whole panel is on the screen.
WIDE, NARROW = (1400, 1200), (400, 2300)
SIZES = {"inspected": ((1400, 2000), (400, 4000))}
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}


@pytest.fixture
def panel_in(page):
    """The panel of a new training, brought into a state; what still runs is stopped at the end."""
    shown = []

    def bring(state):
        page.theme(THEMES["light"])
        page.resize(*WIDE)
        cell = list(CELLS).index(state)
        page.result(cell)
        panel = PanelPage(page, cell)
        shown.append(panel)
        panel.wait_status("ready")
        if state not in ("ready", "keys"):
            train(panel, state)
        return panel

    yield bring
    for panel in shown:
        if panel.status.text_content() == "running":
            panel.stop()
            panel.wait_status("stopped")


def train(panel, state):
    for taken in (1, 2):
        panel.click("Step")
        panel.wait_points(taken)
    panel.click("Save")
    expect(panel.checkpoints.get_by_role("button", name=re.compile("^Restore "))).to_have_count(1)
    panel.click("Run")
    if state in ("running", "paused"):
        panel.wait_more_points_than(50)
    if state == "paused":
        panel.click("Pause")
    if state == "inspected":
        expect(panel.why).to_contain_text("stopped by NonFinite()")  # "paused" it is from the steps already
    panel.wait_status(STATUS.get(state, state))
    if state == "inspected":
        panel.click("Inspect")
        expect(panel.inspection.get_by_role("group", name="Layers: table")).to_be_visible()


# -- colours --------------------------------------------------------------------------------------------

# Every colour through a canvas of one pixel: the style may say it in any of a dozen notations.
COLOURS = """
(panel) => {
    const light = ([r, g, b]) => (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
    const one = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const pixel = (colour) => {
        one.clearRect(0, 0, 1, 1);
        one.fillStyle = colour;
        one.fillRect(0, 0, 1, 1);
        return one.getImageData(0, 0, 1, 1).data;
    };
    const style = getComputedStyle(panel);
    const page = getComputedStyle(document.body).getPropertyValue("--jp-layout-color1");
    const canvas = panel.querySelector("canvas");
    let inked = [];
    if (canvas && canvas.width > 0) {
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] > 250) inked.push(light(data.subarray(at, at + 3)));
        inked.sort((a, b) => a - b);
    }
    const at = (share) => inked.length ? inked[Math.floor(share * (inked.length - 1))] : null;
    return {
        background: light(pixel(style.backgroundColor)), page: light(pixel(page)),
        text: light(pixel(style.color)), ink: inked.length, darkest: at(0.01), lightest: at(0.99),
    };
}
"""


def check_colours(panel, theme, drawn):
    colours = panel.region.evaluate(COLOURS)
    assert colours["background"] == pytest.approx(colours["page"], abs=0.01)
    dark = theme == "dark"
    assert (colours["background"] < 0.2 and colours["text"] > 0.8) is dark, colours
    assert (colours["background"] > 0.9 and colours["text"] < 0.2) is not dark, colours
    if drawn:
        assert colours["ink"] > 500, "the plot is empty"
        # Lines and words of the plot stand out from what is behind them.
        assert (colours["lightest"] > 0.6) if dark else (colours["darkest"] < 0.4), colours


# -- room -----------------------------------------------------------------------------------------------

ROWS_OF_CONTROLS = """
(panel) => new Set([...panel.querySelectorAll(".nl-controls button, .nl-controls input")]
    .map((one) => Math.round(one.getBoundingClientRect().top))).size
"""


def check_one_row_of_controls(panel, name):
    assert panel.region.evaluate(ROWS_OF_CONTROLS) == 1
    lab = panel.notebook.page
    # As JupyterLab opens for the first time: with the list of files on the left.
    lab.evaluate("jupyterapp.shell.expandLeft()")
    lab.locator("#jp-left-stack").wait_for()
    panel.notebook.screenshot(name)
    assert panel.region.bounding_box()["width"] < 1050
    assert panel.region.evaluate(ROWS_OF_CONTROLS) == 1
    lab.evaluate("jupyterapp.shell.collapseLeft()")


def findings(panel):
    cell = panel.notebook.cell(panel.cell)
    cell.evaluate("(element) => { element.id = 'looked-at'; }")
    found = axe(panel.notebook.page, "#looked-at .nl-panel")
    cell.evaluate("(element) => { element.removeAttribute('id'); }")
    return found


@pytest.mark.parametrize("state", STATES)
@pytest.mark.rounds(1)
def test_each_state_is_readable_in_both_themes_and_has_room_at_both_widths(page, panel_in, state):
    panel = panel_in(state)
    page.page.evaluate("window.same = true")
    for theme, name in THEMES.items():
        page.theme(name)
        for width, height in SIZES.get(state, (WIDE, NARROW)):
            page.resize(width, height)
            panel.look()
            page.screenshot(f"looks-{state}-{theme}-{width}", panel.region)
            check_room(panel)
            assert findings(panel) == []
            if width == 1400:
                check_one_row_of_controls(panel, f"looks-{state}-{theme}-files")
        check_colours(panel, theme, drawn=state != "ready")
    assert page.page.evaluate("window.same"), "the page was loaded again"
    assert panel.status.text_content() == STATUS.get(state, state)
    # A run has no answer until it is over: that is nothing to worry about while steps come in.
    expect(panel.region.locator("[data-part=hint]")).not_to_have_attribute("data-kind", "waiting")


# -- keyboard -------------------------------------------------------------------------------------------

# Numbers every control, also one that only says why it cannot be used; `window.focused` tells which has the
# focus, and whether that can be seen.
NUMBER_CONTROLS = """
(panel) => {
    const controls = [...panel.querySelectorAll("button, input, select, summary, [tabindex]")]
        .filter((one) => one.tabIndex >= 0 && one.checkVisibility());
    window.focused = () => {
        const active = document.activeElement;
        if (!panel.contains(active)) return null;
        const style = getComputedStyle(active);
        const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
        return { number: controls.indexOf(active), seen };
    };
    return controls.map((one) => one.textContent || one.getAttribute("aria-label"));
}
"""


def press(panel, name, key):
    button = panel.button(name)
    # A step that was taken is shown a moment before the next one may be asked for.
    expect(button).not_to_have_attribute("aria-disabled", "true")
    button.focus()
    panel.notebook.page.keyboard.press(key)


def test_keyboard_reaches_every_control_in_order_and_acts_there(page, panel_in):
    panel, keyboard = panel_in("keys"), page.page.keyboard
    cells = page.page.locator(".jp-Notebook .jp-Cell").count()
    press(panel, "Step", "Enter")
    panel.wait_position("epoch 1, train, step 1 of 200")
    press(panel, "Step", "Space")
    panel.wait_position("epoch 1, train, step 2 of 200")
    press(panel, "Save", "Space")
    expect(panel.checkpoints.get_by_role("button", name=re.compile("^Restore "))).to_have_count(1)
    keyboard.press("b")  # in the notebook: a new cell below
    assert page.page.locator(".jp-Notebook .jp-Cell").count() == cells

    controls = panel.region.evaluate(NUMBER_CONTROLS)
    assert {"Run", "Pause", "Stop", "Step", "Steps", "Step epoch", "Rewind", "Save", "Loss"} <= set(controls)
    panel.button("Run").focus()
    keyboard.press("Shift+Tab")
    assert page.page.evaluate("focused()") is None, "something of the panel is before its first button"
    visited = []
    for _ in controls:
        keyboard.press("Tab")
        visited.append(page.page.evaluate("focused()"))
    assert visited == [{"number": number, "seen": True} for number in range(len(controls))], controls
    keyboard.press("Tab")
    assert page.page.evaluate("focused()") is None, "the panel holds the focus"


def test_arrow_keys_choose_a_tab_and_enter_in_a_field_takes_its_steps(page, panel_in):
    panel, keyboard = panel_in("keys"), page.page.keyboard
    steps = panel.region.get_by_label("How many steps to take")
    steps.fill("3")
    steps.press("Enter")
    panel.wait_position("epoch 1, train, step 3 of 200")
    panel.wait_points(3)
    tabs = panel.region.get_by_role("tab")
    assert tabs.all_text_contents() == ["Loss", "Mean distance"]
    tabs.first.focus()
    for key, chosen in (("ArrowRight", 1), ("ArrowRight", 0), ("ArrowLeft", 1), ("Home", 0), ("End", 1)):
        keyboard.press(key)
        expect(tabs.nth(chosen)).to_be_focused()
        expect(tabs.nth(chosen)).to_have_attribute("aria-selected", "true")
        expect(tabs.nth(1 - chosen)).to_have_attribute("aria-selected", "false")
        expect(panel.plot.get_by_role("img")).to_have_attribute(
            "aria-label", re.compile(("Loss", "Mean distance")[chosen])
        )
