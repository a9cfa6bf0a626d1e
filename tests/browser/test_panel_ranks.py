"""The panel of a training on two devices, in a real page: its inspection shows the rank that is chosen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from accessibility import axe
from panel_page import PanelPage
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
"""
# Rank 0 has samples 0 to 3 of every batch, rank 1 samples 4 to 7.
TWO = """
model, x = Net(), torch.arange(8.0)[:, None].expand(8, 4) / 10
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
builder = LearnerBuilder("ranks").metrics(Loss()).devices(["cpu", "cpu"])
learner = builder.build(model, optimizer, None, [(x, x[:, :1])] * 1000)
learner.step(2)
learner
"""
PARTS = {0: "float32 [4, 4]  0 … 0.3000", 1: "float32 [4, 4]  0.4000 … 0.7000"}


@pytest.fixture
def panel(notebook):
    """Two steps into a training on two devices, which are processes."""
    killed = "import os; os.kill(learner.devices[1].pid, 9)"
    page = notebook([SETUP, TWO, "learner.inspect(rank=1).rank", killed])
    page.result(0)
    page.result(1)
    panel = PanelPage(page, 1)
    panel.wait_position("step 2 of 1000")
    panel.wait_status("paused")
    return panel


def shows(panel, rank):
    expect(panel.inspection.get_by_role("heading")).to_have_text(f"Inspection of rank {rank}")
    expect(panel.inspection).to_contain_text(PARTS[rank])
    expect(panel.ranks).to_have_value(str(rank))


@pytest.mark.soak
def test_the_chosen_rank_shows_its_part_of_the_batch(panel):
    page = panel.notebook
    expect(panel.inspection.get_by_role("heading")).to_have_text("Inspection")
    assert panel.ranks.get_by_role("option").all_inner_texts() == ["0 · cpu", "1 · cpu"]
    panel.ranks.select_option("1")
    shows(panel, 1)
    expect(panel.hint).to_have_text("inspected at epoch 1, train, step 2 of 1000, rank 1")
    panel.ranks.focus()
    page.page.keyboard.press("ArrowUp")
    shows(panel, 0)
    assert page.result(2) == "1"
    shows(panel, 1)  # what a cell looks at shows, too

    panel.click("Step")
    expect(panel.inspection.get_by_role("heading")).to_have_text("Inspection")
    panel.click("Inspect")
    shows(panel, 1)  # it stays chosen

    panel.click("Run")
    panel.wait_status("running")
    expect(panel.ranks).to_have_attribute("aria-disabled", "true")
    described = panel.ranks.get_attribute("aria-describedby")
    expect(panel.region.locator(f"id={described}")).to_have_text("it is running; pause it first")
    panel.ranks.focus()
    page.screenshot("looks-ranks-running", panel.region)
    page.page.keyboard.press("ArrowUp")
    expect(panel.hint).to_have_text("it is running; pause it first")
    expect(panel.ranks).to_have_value("1")
    panel.click("Pause")
    panel.wait_status("paused")
    assert not page.complaints


@pytest.mark.soak
def test_a_rank_that_died_is_text_beside_the_buttons(panel):
    panel.ranks.select_option("1")
    shows(panel, 1)
    panel.notebook.result(3)
    panel.notebook.resize(1400, 2000)
    panel.ranks.select_option("0")
    shows(panel, 0)
    panel.ranks.select_option("1")
    expect(panel.hint).to_contain_text(re.compile(r"^rank 1 \(.*\) died in"))
    panel.notebook.screenshot("looks-ranks-dead", panel.region)
    expect(panel.ranks.get_by_role("option").nth(1)).to_have_text("1 · cpu, dead")
    shows(panel, 0)


@pytest.mark.soak
def test_the_chooser_is_readable_in_both_themes_and_has_room_at_each_width(panel):
    page = panel.notebook
    panel.ranks.select_option("1")
    shows(panel, 1)
    for theme in ("Light", "Dark"):
        page.theme(f"JupyterLab {theme}")
        for width, height in ((1400, 2000), (400, 4200)):
            page.resize(width, height)
            panel.look()
            page.screenshot(f"looks-ranks-{theme.lower()}-{width}", panel.region)
            edge, box = panel.inspection.bounding_box(), panel.ranks.bounding_box()
            assert edge["x"] <= box["x"] and box["x"] + box["width"] <= edge["x"] + edge["width"]
        page.cell(1).evaluate("(element) => { element.id = 'looked-at'; }")
        assert axe(page.page, "#looked-at .nl-panel") == []
