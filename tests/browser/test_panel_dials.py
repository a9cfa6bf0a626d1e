"""The fields at the head of the panel: typed into, they set what the next step takes."""

from __future__ import annotations

from pathlib import Path

from panel_page import PanelPage
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
"""


def test_a_rate_is_typed_while_it_runs_and_what_is_no_rate_does_not_stay(notebook):
    page = notebook(
        [
            SETUP + "learner = build('dials', steps=5000)",
            "learner.fit();",
            "group = learner.optimizer.param_groups[0]\ngroup['lr'], group['momentum']",
        ]
    )
    page.result(0)
    page.run(1)
    panel = PanelPage(page, 1)
    panel.wait_status("running")
    panel.wait_more_points_than(5)
    rate = panel.region.get_by_role("textbox", name="Learning rate", exact=True)
    momentum = panel.region.get_by_role("textbox", name="Momentum", exact=True)
    expect(rate).to_have_value("0.01")
    rate.fill("2e-3")
    rate.press("Enter")
    expect(panel.hint).to_contain_text("lr is 0.002 from epoch 1, train, step ")
    rate.blur()
    expect(rate).to_have_value("0.002")
    momentum.fill("1")
    momentum.press("Enter")
    expect(panel.hint).to_contain_text("momentum must be less than 1")
    expect(momentum).to_have_value("0.9")
    momentum.fill("fast")
    momentum.press("Enter")
    expect(panel.hint).to_contain_text("give a number from 0")
    expect(momentum).to_have_value("0.9")
    panel.wait_status("running")
    panel.click("Pause")
    panel.wait_status("paused")
    page.wait_idle()
    momentum.fill("0.5")
    momentum.press("Enter")
    expect(panel.hint).to_contain_text("momentum is 0.5")
    expect(panel.log).to_contain_text("edited: lr = 0.002")
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.theme(theme)
        for width in (400, 760, 1400):
            page.resize(width)
            panel.look()
            page.screenshot(f"dials-{theme[-5:].strip().lower()}-{width}", panel.region)
            assert panel.region.evaluate("(one) => one.scrollWidth <= one.clientWidth + 1")
    assert page.result(2) == "(0.002, 0.5)"
