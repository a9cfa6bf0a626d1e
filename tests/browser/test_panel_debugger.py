"""Breakpoints, inspection and the slider that goes back, in a real page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from panel_page import PanelPage
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
from notebook_learner.breakpoint import AtStep
"""


@pytest.mark.soak
def test_a_breakpoint_switched_on_by_a_click_stops_a_blocking_fit_and_says_why(notebook):
    page = notebook(
        [
            SETUP + "learner = build('switched', steps=10_000)\n"
            "learner.breakpoints.add(lambda moment: 'enough <b>steps</b>', name='enough').on = False",
            "learner.fit();",
            "learner.hit",
        ]
    )
    page.result(0)
    page.run(1)
    panel = PanelPage(page, 1)
    panel.wait_status("running")
    expect(panel.switch("enough")).not_to_be_checked()
    panel.wait_more_points_than(50)  # it is off
    panel.wait_status("running")

    panel.switch("enough").click()

    page.wait_idle()
    panel.wait_status("paused")
    expect(panel.why).to_have_text("stopped by enough: enough <b>steps</b>")
    row = panel.breakpoints.get_by_role("listitem")
    expect(row.get_by_text("stopped here")).to_be_visible()
    expect(row).to_contain_text("enough <b>steps</b>; hit once")
    assert "stopped by enough" in page.output_text(1)
    assert "enough <b>steps</b>" in page.result(2)

    panel.look()  # a panel out of sight is not drawn, and may have been drawn last as the kernel was busy
    panel.switch("enough").click()
    points = panel.points
    panel.click("Run")
    panel.wait_more_points_than(points)
    panel.wait_status("running")
    expect(row.get_by_text("stopped here")).to_be_hidden()
    panel.stop()
    panel.wait_status("stopped")
    assert not page.complaints


STATE = """
def state():
    held = {"model": learner.model.state_dict(), "optimizer": learner.optimizer.state_dict()}
    return repr([held, torch.get_rng_state().tolist(), len(learner.history["train", "Loss"])])
before = state()
"""
FINISHED = """
straight = build('straight', steps=40, epochs=10, renderer='silent').fit()
all(torch.equal(a, b) for a, b in zip(learner.model.parameters(), straight.parameters()))
"""


@pytest.fixture
def ten_steps(notebook):
    """A panel below `learner`, ten steps into its run."""
    page = notebook(
        [
            SETUP + "torch.set_printoptions(precision=10, threshold=100_000)\n"
            "learner = build('looked', steps=40, epochs=10)\nlearner",
            STATE,
            "state() == before",
            FINISHED,
        ]
    )
    page.run(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    panel.click("Steps")
    panel.wait_position("epoch 1, train, step 10 of 40")
    panel.wait_status("paused")
    return panel


@pytest.mark.soak
def test_inspect_fills_its_section_and_leaves_the_state_as_it_was(ten_steps):
    page = ten_steps.notebook
    page.result(1)
    expect(ten_steps.inspection).to_be_hidden()

    ten_steps.button("Inspect").press("Enter")

    layers = ten_steps.inspection.get_by_role("group", name="Layers: table")
    expect(layers.get_by_role("row").filter(has_text="linear")).to_contain_text("Linear")
    expect(ten_steps.inspection).to_contain_text("Batch")
    assert page.result(2) == "True"
    ten_steps.click("Step")
    ten_steps.wait_position("step 11 of 40")
    expect(ten_steps.inspection).to_be_hidden()
    assert not page.complaints


def test_a_click_verifies_and_the_panel_says_what_differs(ten_steps):
    said = ten_steps.region.locator("[data-part=verified]")
    expect(said).to_contain_text("Not tried yet")
    ten_steps.click("Verify")
    # What this notebook trains notes the time of each step.
    expect(said).to_contain_text("panel_training.stamps[10] differs after epoch 1, train, step 11 of 40")
    expect(said).to_contain_text(re.compile(r"tried at \d+:\d+.*; not exact before"))
    ten_steps.wait_position("step 10 of 40")
    ten_steps.notebook.screenshot("verified", ten_steps.region)
    assert not ten_steps.notebook.complaints


def test_the_slider_goes_back_to_a_step_and_run_goes_on_to_the_same_bits(ten_steps):
    page, slider = ten_steps.notebook, ten_steps.slider
    aim = ten_steps.region.locator("[data-part=rewind]")
    expect(aim).to_contain_text("at step 10")
    slider.focus()
    for _ in range(6):
        page.page.keyboard.press("ArrowLeft")
    expect(aim).to_contain_text("rewind to step 4")
    expect(slider).to_have_attribute("aria-valuetext", "rewind to step 4")
    ten_steps.wait_position("step 10 of 40")  # arrows only choose
    page.page.keyboard.press("Enter")
    ten_steps.wait_position("step 4 of 40")
    ten_steps.wait_points(4)
    expect(aim).to_contain_text("at step 4")

    box = slider.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.page.mouse.move(box["x"] + box["width"] - 4, middle)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 2, middle, steps=5)
    expect(aim).to_contain_text("rewind to step 0")
    ten_steps.wait_position("step 4 of 40")  # not before the hand lets go
    page.page.mouse.up()
    ten_steps.wait_position("epoch 1, train, step 0 of 40")

    ten_steps.click("Run")
    ten_steps.wait_status("running")
    expect(slider).to_have_attribute("aria-disabled", "true")
    described = slider.get_attribute("aria-describedby")
    expect(ten_steps.region.locator(f"id={described}")).to_have_text(re.compile("pause it first"))
    ten_steps.wait_status("finished")
    ten_steps.wait_points(400)
    assert page.result(3) == "True"
    assert not page.complaints
