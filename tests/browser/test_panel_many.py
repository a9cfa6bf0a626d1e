"""A panel that shows much, in a real page: thirty metrics, other runs behind the curves, several learners."""

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

class Number(Metric):
    needs = ("loss",)

    def __init__(self, name, factor):
        self.name, self.factor = name, factor
        self.higher_is_better = {{0: False, 1: True}}.get(factor // 10)

    def update(self, item):
        return item.loss * self.factor

def many(name):
    metrics = [Number(f"{{'norm' if n > 19 else 'metric'}} {{n}}", n) for n in range(29)]
    learner = build(name, steps=40, epochs=3, metrics=metrics)
    learner.step(30)
    return learner

def few(name, rate=0.01, steps=30):
    learner = build(name, steps=40, epochs=3)
    learner.lr = rate
    learner.step(steps)
    return learner
"""


CELLS = {
    "setup": SETUP + "runs = 0",
    "learner": "runs += 1\nlearner = many(f'{runs}/thirty')\nlearner",
    "asked": "",
    "strip": "runs += 1\nlearner = few(f'{runs}/one')\nlearner.panel.compact()\nlearner",
    "whole": "other = few(f'{runs}/two')\nother",
}


def shown(page, cell):
    page.result(cell)
    panel = PanelPage(page, cell)
    panel.wait_status("paused")
    return panel


def tiles(panel):
    return panel.region.locator(".nl-tile")


@pytest.fixture
def thirty(page):
    """A panel of thirty metrics, in a window of 1400 x 900."""
    page.resize(1400, 900)
    panel = shown(page, 1)
    expect(tiles(panel)).to_have_count(30)
    return panel


def test_thirty_metrics_are_searched_pinned_hidden_and_chosen(thirty):
    panel, page = thirty, thirty.notebook
    expect(panel.region.locator(".nl-group-name")).to_have_text(
        ["Lower is better", "Higher is better", "Others"]
    )
    assert panel.region.bounding_box()["height"] <= 900
    assert axe(page.page, ".nl-panel") == []
    page.screenshot("thirty-metrics", panel.region)
    search = panel.region.get_by_role("searchbox", name="Search the metrics")
    search.fill("NORM")
    expect(tiles(panel)).to_have_count(9)
    panel.region.get_by_role("button", name="Pin norm 23", exact=True).click()
    expect(panel.region.locator(".nl-group-name")).to_have_text(["Pinned", "Others"])
    panel.region.get_by_role("button", name="Hide norm 24", exact=True).click()
    expect(tiles(panel)).to_have_count(8)
    search.fill("")
    expect(tiles(panel)).to_have_count(29)
    expect(panel.region.get_by_role("tab").first).to_have_text("norm 23")
    tiles(panel).filter(has_text="metric 19").locator(".nl-tile-plot").click()
    expect(panel.region.get_by_role("tab", selected=True)).to_have_text("metric 19")
    # The marks are kept for this run's directory, and for no other.
    page.save()
    page.reload()
    again = PanelPage(page, 1)
    again.look()
    expect(again.region.get_by_role("tab").first).to_have_text("norm 23")
    expect(tiles(again)).to_have_count(29)
    again.region.get_by_role("button", name="Show 1 hidden").click()
    expect(tiles(again)).to_have_count(30)


FRAMES_IN_A_SECOND = """
() => new Promise((done) => {
    const [real, began] = [window.requestAnimationFrame, performance.now()];
    let count = 0;
    window.requestAnimationFrame = (call) => {
        count++;
        return real.call(window, call);
    };
    setTimeout(() => {
        window.requestAnimationFrame = real;
        done(count);
    }, 1000);
})
"""


def test_a_panel_draws_nothing_while_nothing_happens(notebook):
    build = "LearnerBuilder('bare').build(model, torch.optim.SGD(model.parameters(), 0.1))"
    page = notebook([SETUP, f"model = Net()\nbare = {build}\nbare"])
    page.result(0)
    page.result(1)
    PanelPage(page, 1).wait_status("ready")
    assert page.page.evaluate(FRAMES_IN_A_SECOND) < 20


def test_each_metric_keeps_its_own_scale_smoothing_and_window(thirty):
    region = thirty.region
    scale = region.get_by_role("button", name="Log scale")
    smoothing = region.get_by_role("slider", name="Smoothing")
    scale.click()
    smoothing.fill("80")
    region.get_by_role("button", name="Recent", exact=True).click()
    region.get_by_role("tab", name="metric 1", exact=True).click()
    expect(scale).to_have_attribute("aria-pressed", "false")
    expect(smoothing).to_have_value("30")
    expect(region.get_by_role("button", name="All", exact=True)).to_have_attribute("aria-pressed", "true")
    region.get_by_role("tab", name="Loss", exact=True).click()
    expect(scale).to_have_attribute("aria-pressed", "true")
    expect(smoothing).to_have_value("80")
    expect(region.get_by_role("button", name="Recent", exact=True)).to_have_attribute("aria-pressed", "true")


def test_the_small_plots_tell_the_values_at_the_step_under_the_pointer(thirty):
    panel, page = thirty, thirty.notebook.page
    tile = tiles(panel).filter(has=panel.region.page.get_by_text("metric 2", exact=True))
    newest = tile.locator("b").inner_text()
    box = panel.plot.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 50)
    step = int(re.search(r"step (\d+)", panel.region.locator(".nl-read-where").inner_text())[1])
    expect(tile.locator("b")).not_to_have_text(newest)
    there = float(tile.locator("b").inner_text())
    asked = list(CELLS).index("asked")
    panel.notebook.type(asked, f"2 * float(learner.history.values('Loss', 'train')[{step} - 1])")
    assert there == pytest.approx(float(panel.notebook.result(asked)), rel=1e-3)


def test_a_folded_section_stays_folded_in_the_next_panel(thirty):
    region, page = thirty.region, thirty.notebook
    fold = region.get_by_role("button", name="Log", exact=True)
    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "false")
    expect(region.locator("[data-part=log] pre")).to_be_hidden()
    page.save()
    page.reload()
    again = PanelPage(page, 1)
    again.look()
    fold = again.region.get_by_role("button", name="Log", exact=True)
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.press("Enter")
    expect(again.region.locator("[data-part=log] pre")).to_be_visible()


def test_another_run_is_laid_over_by_the_user_and_by_the_chooser(notebook):
    page = notebook(
        [
            SETUP + "few('runs/first', 0.002, 30); few('runs/second', 0.0005, 36);",
            "learner = few('runs/third')\nlearner",
            "learner.panel.overlay('runs/first')",
            "learner.panel.overlay()",
        ]
    )
    page.result(0)
    page.resize(1400, 1000)
    panel = shown(page, 1)
    part = panel.region.locator("[data-part=runs]")
    page.run(2)
    expect(part.get_by_role("button")).to_have_text(["first"])
    part.get_by_role("combobox", name="Lay another run over the curves").select_option("second")
    expect(part.get_by_role("button")).to_have_text(["first", "second"])
    # The longer of them sets how far the axis goes.
    expect(panel.hint).to_have_text("run second is laid over")
    page.screenshot("overlay", panel.region)
    assert axe(page.page, ".nl-panel") == []
    part.get_by_role("button", name="first", exact=True).click()
    offer = panel.region.locator(".nl-branch-offer")
    expect(offer).to_contain_text("run first: 30 training steps")
    offer.get_by_role("button", name="Take away").click()
    expect(part.get_by_role("button")).to_have_text(["second"])
    page.run(3)
    panel.look()
    expect(part.get_by_role("button")).to_have_count(0)


@pytest.mark.parametrize("width", [1400, 760])
def test_a_compact_panel_is_a_strip_that_steers(page, width):
    page.resize(width, 900)
    panel, whole = (shown(page, list(CELLS).index(name)) for name in ("strip", "whole"))
    panel.look()
    assert panel.region.bounding_box()["height"] <= 120
    page.screenshot(f"compact-{width}", panel.region)
    assert axe(page.page, ".nl-panel[data-compact]") == []
    pace, size = panel.region.locator(".nl-pace").bounding_box(), panel.button("Whole panel").bounding_box()
    assert pace["x"] + pace["width"] <= size["x"]
    panel.click("Run")
    panel.wait_status("running")
    panel.click("Pause")
    panel.wait_status("paused")
    expect(panel.region.locator(".nl-readout")).to_contain_text(re.compile("train.*batch"))
    panel.button("Whole panel").click()
    expect(panel.plot).to_be_visible()
    whole.button("Compact").click()
    assert whole.region.bounding_box()["height"] <= 120
