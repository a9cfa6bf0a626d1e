"""The lines that a run has left, in a real page: seen, told apart, and gone to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from accessibility import axe
from panel_page import PanelPage, panel_after_training
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
torch.set_printoptions(precision=10)

def bits():
    return repr([each.tolist() for each in learner.model.parameters()])
"""
LEFT_THREE = """
learner.step(10)
ends = {}
for name, rate in (("1", 0.03), ("2", 0.0001), ("3", 0.003)):
    learner.step(20)
    ends[name] = bits()
    learner.rewind(20)
    learner.lr = rate
learner.step(8);
"""
SECOND = "branch 2: from epoch 1, train, step 10 to epoch 1, train, step 30 (lr = 0.03)"
NAMES = ["branch 1", "2 · lr = 0.03", "3 · lr = 0.0001"]


@pytest.fixture
def branched(notebook):
    """A panel below `learner`, which went back three times to step 10 and on with another rate."""
    page = notebook(
        [
            SETUP + "learner = build('branched', steps=60, epochs=200)\nlearner",
            LEFT_THREE,
            "bits() == ends['2']",
        ]
    )
    return panel_after_training(page, 18)


def part(panel):
    return panel.region.locator("[data-part=branches]")


def lines_under_the_pointer(panel, share, until=None):
    """What the page tells about the lines at a share of the plot's width, from its top to its bottom."""
    box = panel.plot.locator(".u-over").bounding_box()
    told = []
    for down in range(2, int(box["height"]), 3):
        panel.notebook.page.mouse.move(box["x"] + share * box["width"], box["y"] + down)
        tip = panel.region.locator(".nl-tip")
        text = tip.text_content() if tip.is_visible() else ""
        if text and text not in told:
            told.append(text)
        if text and text == until:
            break
    return told


def test_three_lines_are_told_apart_and_one_of_them_is_gone_to_by_keys(branched):
    panel, page = branched, branched.notebook.page
    names = part(panel).locator("button[data-name]")
    expect(names).to_have_text(NAMES)
    for name in ("1", "2", "3"):
        expect(panel.log).to_contain_text(f"left branch {name}: from epoch 1, train, step 10")
    told = {text for share in (0.7, 0.8, 0.9) for text in lines_under_the_pointer(panel, share)}
    assert sorted(text[:8] for text in told) == ["branch 1", "branch 2", "branch 3"] and SECOND in told

    names.nth(1).focus()
    page.keyboard.press("Enter")
    go = part(panel).get_by_role("button", name=re.compile("^Go to the end of branch 2"))
    expect(go).to_have_text(re.compile(r"branch 2 \(\d+ steps replayed\)$"))
    expect(part(panel)).to_contain_text(SECOND)
    assert axe(page, ".nl-panel") == []
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(go).to_be_focused()
    page.keyboard.press("Enter")

    panel.wait_position("epoch 1, train, step 30 of 60")
    panel.wait_points(30)
    assert panel.notebook.result(2) == "True"
    expect(names).to_have_text(["branch 1", "3 · lr = 0.0001", "4 · lr = 0.003"])
    expect(go).to_be_hidden()
    assert not panel.notebook.complaints


@pytest.mark.soak
def test_a_line_is_clicked_and_cannot_be_gone_to_while_the_run_trains(branched):
    panel, page = branched, branched.notebook.page
    assert any(SECOND in lines_under_the_pointer(panel, share, SECOND) for share in (0.7, 0.8, 0.9))
    page.mouse.down()
    page.mouse.up()
    go = part(panel).get_by_role("button", name=re.compile("^Go to the end of branch 2"))
    expect(go).to_be_visible()
    panel.click("Run")
    panel.wait_status("running")
    expect(go).to_have_attribute("title", "it is running; pause it first")
    go.click(force=True)  # Playwright waits for a button that is not aria-disabled; a person clicks
    expect(panel.hint).to_have_text("it is running; pause it first")
    panel.click("Pause")
    panel.wait_status("paused")
    expect(go).not_to_have_attribute("aria-disabled", "true")
    go.click()
    panel.wait_position("epoch 1, train, step 30 of 60")
    assert panel.notebook.result(2) == "True"


@pytest.mark.soak
def test_a_run_at_its_beginning_shows_what_it_has_left(notebook):
    page = notebook(
        [SETUP + "learner = build('begun', steps=60)\nlearner", "learner.step(20); learner.rewind(20);"]
    )
    page.run(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    page.result(1)
    panel.look()
    expect(part(panel).locator("button[data-name]")).to_have_text(["branch 1"])
    assert [text[:8] for text in lines_under_the_pointer(panel, 0.5)] == ["branch 1"]
    assert not page.complaints


@pytest.mark.soak
def test_it_looks_well_in_both_themes_wide_and_narrow(branched):
    panel, page = branched, branched.notebook
    for theme in ("Light", "Dark"):
        page.theme(f"JupyterLab {theme}")
        for width, height in ((1400, 1200), (400, 2300)):
            page.resize(width, height)
            panel.look()
            page.screenshot(f"branches-{theme.lower()}-{width}", panel.region)
            wide = panel.region.evaluate("one => one.scrollWidth - one.clientWidth")
            assert wide <= 0, (theme, width)
            part(panel).get_by_role("button", name=NAMES[1]).click()
            go = part(panel).get_by_role("button", name=re.compile("^Go to the end"))
            expect(go).to_be_visible()
            inside, around = go.bounding_box(), panel.region.bounding_box()
            assert inside["x"] + inside["width"] <= around["x"] + around["width"]
            assert axe(page.page, ".nl-panel") == []
            page.screenshot(f"branches-{theme.lower()}-{width}-chosen", panel.region)
            page.press("Escape")
            expect(go).to_be_hidden()
