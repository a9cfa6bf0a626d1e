"""The panel for people who use keys only, zoom to 200 %, want no motion, or have it read to them."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from accessibility import axe
from panel_page import PanelPage
from panel_room import MISFITS, check_room
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
from notebook_learner.breakpoint import NonFinite

def new(name):
    learner = build(name, steps=60, epochs=200)
    learner.breakpoints.add(NonFinite())
    learner.step(10)
    for rate in (0.03, 0.0001):
        learner.step(20)
        learner.rewind(20)
        learner.lr = rate
    learner.step(8)
    learner.save()
    learner.inspect()
    return learner
"""
CELLS = {
    "setup": SETUP,
    "keys": "new('keys')",
    "zoomed": "new('zoomed')",
    "waits": "new('waits')",
    "asked": "new('asked')",
}
FOCUS = "() => document.activeElement.closest('.nl-panel') && document.activeElement.textContent"


@pytest.fixture
def panel_of(page):
    """The panel of a new learner: at step 18, with two branches, a checkpoint and an inspection."""

    def show(cell):
        page.resize(1400, 1600)
        page.result(list(CELLS).index(cell))
        panel = PanelPage(page, list(CELLS).index(cell))
        panel.wait_status("paused")
        panel.wait_points(18)
        expect(panel.inspection).to_be_visible()
        return panel

    return show


def tool(panel, name):
    return panel.region.get_by_role("button", name=name, exact=True)


def is_pressed(button, pressed=True):
    expect(button).to_have_attribute("aria-pressed", str(pressed).lower())


def go(panel):
    return panel.region.get_by_role("button", name=re.compile("^Go to the end of branch"))


# -- keys -----------------------------------------------------------------------------------------------


def test_buttons_of_the_training_are_pressed_with_enter_and_space(page, panel_of):
    panel = panel_of("keys")
    for name, key, position in (
        ("Steps", "Space", "step 28 of 60"),
        ("Rewind", "Enter", "step 27 of 60"),
        ("Step epoch", "Space", "epoch 2, train, step 0"),
    ):
        panel.usable(name).press(key)
        panel.wait_position(position)
        expect(panel.button(name)).to_be_focused()
    panel.usable("Inspect").press("Space")
    expect(panel.hint).to_contain_text("inspected at epoch 2")
    panel.usable("Run").press("Enter")
    panel.wait_status("running")
    panel.usable("Pause").press("Space")
    panel.wait_status("paused")
    expect(panel.button("Pause")).to_be_focused()


def test_stop_and_restore_ask_and_a_second_press_of_the_key_says_yes(page, panel_of):
    panel = panel_of("asked")
    restore = panel.checkpoints.locator("[data-cmd=restore]")
    for key in ("Enter", "Space"):
        panel.usable("Step").press("Enter")
        panel.wait_position("step 19 of 60")
        restore.press(key)
        expect(restore).to_have_text("Really?")
        assert axe(page.page, ".nl-panel:has(.nl-asking)") == []
        panel.wait_position("step 19 of 60")  # the question alone does nothing
        restore.press(key)
        panel.wait_position("step 18 of 60")
        expect(restore).to_have_text("Restore")
        expect(restore).to_be_focused()
    stop = panel.region.locator("[data-cmd=stop]")
    stop.press("Enter")
    expect(stop).to_have_text("Really stop?")
    page.press("Tab")
    expect(stop).to_have_text("Stop")  # who goes on says no
    stop.press("Space")
    assert axe(page.page, ".nl-panel:has(.nl-asking)") == []
    stop.press("Space")
    panel.wait_status("stopped")
    expect(stop).to_be_focused()


def test_the_plot_is_read_zoomed_and_moved_with_keys(page, panel_of):
    panel = panel_of("keys")
    where, views = panel.region.locator(".nl-read-where"), [tool(panel, name) for name in ("All", "Recent")]
    before = where.text_content()
    panel.plot.press("ArrowLeft")
    for _ in range(120):  # 4 pixels each; on the right there are only branches
        page.press("ArrowLeft")
    expect(where).not_to_have_text(before)
    is_pressed(views[0])
    page.press("+")
    is_pressed(views[0], False)
    read = where.text_content()
    page.press("Shift+ArrowLeft")
    expect(where).not_to_have_text(read)  # the same place of the picture is another step
    page.press("0")
    is_pressed(views[0])
    page.press("=")
    page.press("-")
    is_pressed(views[0])
    views[1].press("Space")
    is_pressed(views[1])
    views[0].press("Enter")
    is_pressed(views[0])


def test_views_of_the_curve_are_changed_with_keys(page, panel_of):
    panel = panel_of("keys")
    for name in ("Log scale", "Table"):
        for key, pressed in (("Space", True), ("Enter", False)):
            tool(panel, name).press(key)
            is_pressed(tool(panel, name), pressed)
    smoothing = panel.region.get_by_role("slider", name="Smoothing", exact=True)
    for key, value in (("Home", "0"), ("ArrowRight", "1"), ("End", "100"), ("ArrowLeft", "99")):
        smoothing.press(key)
        expect(smoothing).to_have_value(value)
    smoothing.press("Home")
    expect(smoothing).to_have_attribute("aria-valuetext", "off")


def test_switches_and_fields_are_used_with_keys(page, panel_of):
    panel = panel_of("keys")
    switch = panel.switch("NonFinite()")
    for state, note in (("off", "off"), ("on", "no hit yet")):
        switch.press("Space")
        expect(panel.hint).to_have_text(f"NonFinite() is {state}")
        expect(panel.breakpoints.locator(".nl-its-note")).to_have_text(note)
        expect(switch).to_be_focused()
    rate = panel.region.get_by_role("textbox", name="Learning rate", exact=True)
    rate.press("Control+a")
    page.press("5")
    page.press("Enter")
    expect(panel.hint).to_contain_text("lr is 5")
    panel.usable("Step").press("Enter")
    panel.wait_position("step 19 of 60")
    expect(rate).to_have_value("5")
    rate.press("7")
    expect(rate).not_to_have_value("5")
    page.press("Escape")
    expect(rate).to_have_value("5")
    epochs = panel.region.get_by_label("Epochs: the last one to train")
    epochs.press("ArrowDown")
    page.press("Enter")
    expect(panel.position).to_contain_text("epoch 1")
    expect(epochs).to_have_value("199")


def test_foldable_parts_are_folded_with_keys(page, panel_of):
    panel = panel_of("keys")
    folded = panel.region.locator("summary:visible")
    assert folded.count() >= 4
    for summary in folded.all():
        was = summary.evaluate("(one) => one.parentElement.open")
        for key, opened in (("Enter", not was), ("Space", was)):
            summary.press(key)
            expect(summary.locator("..")).to_have_js_property("open", opened)


def test_what_hides_the_control_in_use_leaves_the_focus_beside_it(page, panel_of):
    panel = panel_of("keys")
    branch = tool(panel, "2 · lr = 0.03")
    branch.press("Space")
    expect(go(panel)).to_be_visible()
    go(panel).focus()
    page.press("Escape")
    expect(go(panel)).to_be_hidden()
    expect(branch).to_be_focused()

    branch.press("Enter")
    go(panel).press("Enter")
    panel.wait_position("step 30 of 60")
    expect(go(panel)).to_be_hidden()
    expect(panel.region.locator("[data-part=branches] :focus")).to_have_count(1)

    # At the beginning of the run there is no step to go back to, and no slider.
    panel.slider.press("Home")
    page.press("Enter")
    panel.wait_position("epoch 1, train, step 0 of 60")
    assert page.page.evaluate(FOCUS) is not None


def test_a_switch_that_cannot_be_used_keeps_the_focus_and_says_why(page, panel_of):
    panel = panel_of("waits")
    switch = panel.switch("NonFinite()")
    switch.focus()
    server = page.lab._process
    server.send_signal(signal.SIGSTOP)
    try:
        expect(panel.status).to_have_text("no contact")
        expect(switch).to_have_attribute("title", re.compile("no news from the kernel"))
        expect(switch).to_be_focused()
        page.press("Space")
        expect(switch).to_be_checked()
        assert axe(page.page, ".nl-panel:has(:focus)") == []
    finally:
        server.send_signal(signal.SIGCONT)
    panel.wait_status("paused")
    expect(switch).not_to_have_attribute("aria-disabled", "true")
    expect(switch).to_be_focused()
    switch.press("Space")
    expect(panel.hint).to_have_text("NonFinite() is off")


# -- zoom -----------------------------------------------------------------------------------------------

# The control with the focus, and whether it fits sideways and nothing lies over its middle.
REACHED = """
() => {
    const active = document.activeElement;
    if (!active.closest(".nl-panel")) return null;
    const box = active.getBoundingClientRect();
    const middle = (from, to, end) => (Math.max(0, from) + Math.min(end, to)) / 2;
    const x = middle(box.left, box.right, innerWidth), y = middle(box.top, box.bottom, innerHeight);
    const fits = box.left >= 0 && box.right <= innerWidth;
    const free = fits && active.contains(document.elementFromPoint(x, y));
    return [active.ariaLabel || active.textContent || active.role, free];
}
"""
SIDEWAYS = """
(panel) => {
    const wide = [];
    for (let one = panel; one; one = one.parentElement)
        if (one.scrollWidth > one.clientWidth + 1 && one.clientWidth) wide.push(one.className || one.tagName);
    return wide;
}
"""


@pytest.fixture
def zoom(page):
    """A laptop of 1280 by 800 pixels at so many percent: fewer CSS pixels, each of them larger."""
    with_devtools = page.page.context.new_cdp_session(page.page)

    def zoom(percent):
        scale = percent / 100
        size = {"width": round(1280 / scale), "height": round(800 / scale)}
        metrics = {**size, "deviceScaleFactor": scale, "mobile": False}
        with_devtools.send("Emulation.setDeviceMetricsOverride", metrics)
        page.wait(f"devicePixelRatio === {scale} && innerWidth === {size['width']}", "the page is zoomed")

    yield zoom
    with_devtools.send("Emulation.clearDeviceMetricsOverride")
    with_devtools.detach()


def reached(panel):
    """What Tab reaches from Run to the end of the panel, and whether each can be seen and clicked."""
    panel.button("Run").focus()
    found = []
    while (one := panel.notebook.page.evaluate(REACHED)) is not None:
        found.append(one)
        panel.notebook.press("Tab")
    return found


def test_at_200_percent_nothing_is_cut_off_and_every_control_is_reached(page, panel_of, zoom):
    panel = panel_of("zoomed")
    names = [name for name, _ in reached(panel)]
    zoom(200)
    tool(panel, "2 · lr = 0.03").press("Enter")
    expect(go(panel)).to_be_visible()
    panel.button("Stop").press("Enter")
    check_room(panel)
    assert panel.region.evaluate(SIDEWAYS) == []
    controls = reached(panel)
    assert [name for name, free in controls if not free] == []
    assert set(names) < {name for name, _ in controls} and len(controls) > 30, "the same, and the offer"
    panel.button("Run").press("Enter")
    panel.wait_status("running")
    check_room(panel)
    assert panel.region.evaluate(SIDEWAYS) == []
    panel.button("Pause").press("Enter")
    panel.wait_status("paused")
    assert page.page.evaluate("[innerWidth, devicePixelRatio]") == [640, 2]


def test_what_is_cut_off_covered_or_too_wide_is_noticed(page, panel_of, zoom):
    panel = panel_of("zoomed")
    zoom(200)
    panel.button("Save").evaluate(
        "(button) => { button.style.cssText = 'width: 30px; min-width: 0; flex: none'; }"
    )
    assert any("cut off" in each and "Save" in each for each in panel.region.evaluate(MISFITS))
    panel.button("Pause").evaluate("(button) => { button.style.pointerEvents = 'none'; }")
    assert [name for name, free in reached(panel) if not free] == ["Pause"]
    panel.region.evaluate("(panel) => { panel.style.minWidth = '900px'; }")
    assert panel.region.evaluate(SIDEWAYS) != []


# -- motion ---------------------------------------------------------------------------------------------

# What can move: the circle that waits, a button whose request has no answer, and a switch.
SET_IN_MOTION = """
(panel) => {
    panel.querySelector(".nl-waiting").hidden = false;
    panel.querySelector("[data-cmd=save]").setAttribute("aria-busy", "true");
    panel.querySelector("[role=switch]").click();
    return panel.getAnimations({ subtree: true }).map((one) => one.animationName ?? one.transitionProperty);
}
"""
MOST_IN_SOME_FRAMES = """
(panel) => new Promise((done) => {
    let [most, frames] = [0, 0];
    const look = () => {
        most = Math.max(most, panel.getAnimations({ subtree: true }).length);
        if (++frames < 40) requestAnimationFrame(look);
        else done(most);
    };
    look();
})
"""


def test_nothing_moves_for_whoever_wants_no_motion(page, panel_of):
    panel = panel_of("waits")
    moving = panel.region.evaluate(SET_IN_MOTION)
    assert {"nl-turn", "nl-breathe", "transform"} <= set(moving)
    page.page.emulate_media(reduced_motion="reduce")
    try:
        assert panel.region.evaluate(SET_IN_MOTION) == []
        panel.click("Run")  # the pointer rests on it
        panel.wait_status("running")
        assert panel.region.evaluate(MOST_IN_SOME_FRAMES) == 0
        panel.click("Pause")
        panel.wait_status("paused")
    finally:
        page.page.emulate_media(reduced_motion="no-preference")


# -- what axe says of what shows only in use ------------------------------------------------------------


def test_axe_has_nothing_against_questions_tables_offers_and_aims(page, panel_of):
    panel = panel_of("asked")
    tool(panel, "2 · lr = 0.03").click()
    tool(panel, "Table").click()
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.theme(theme)
        for width, height in ((1400, 1600), (400, 3500)):
            page.resize(width, height)
            panel.look()
            panel.button("Stop").press("Enter")
            assert axe(page.page, ".nl-panel:has(.nl-asking)") == []
            panel.slider.press("ArrowLeft")
            assert axe(page.page, ".nl-panel:has([data-aiming])") == []


def test_axe_has_nothing_against_several_panels_in_one_notebook(page, panel_of):
    panel_of("keys")
    panel_of("zoomed")
    assert page.page.locator(".nl-panel").count() > 1
    assert axe(page.page, ".nl-panel") == []


def test_axe_tells_of_violations_of_every_impact_in_the_panel(page, panel_of):
    panel = panel_of("asked")
    panel.region.evaluate(
        "(panel) => panel.append(document.createElement('button'), document.createElement('h3'))"
    )
    found = axe(page.page, ".nl-panel:has(> h3)")
    assert sorted(each.split(":")[0] for each in found) == ["button-name (critical)", "empty-heading (minor)"]
