"""What the panel says when its kernel is gone, silent or busy, and when its learner was replaced."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from accessibility import axe
from lab import wait_for
from panel_page import PanelPage
from playwright.sync_api import expect

SETUP = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
from threading import Event
"""
CELLS = [
    SETUP + "learner = build('truth', steps=3000)\nos.getpid()",
    "learner.fit();",
    "learner = build('truth', steps=3000)\nlearner.start()",
    "Event().wait(20);",
]
LINE = 'LearnerBuilder("truth").resume()'


@pytest.fixture
def page(notebook):
    page = notebook(CELLS)
    page.result(0)
    return page


@pytest.fixture
def running(page):
    """A panel whose cell trains, with a checkpoint some steps ago."""
    panel = PanelPage(page, 1)
    page.run(1)
    panel.wait_status("running")
    panel.click("Save")
    expect(panel.checkpoints.get_by_role("button", name=re.compile("^Restore "))).to_have_count(1)
    panel.wait_more_points_than(panel.points + 20)
    return panel


def trouble(panel):
    return panel.region.locator("[data-part=trouble]")


def check_nothing_is_offered(panel):
    buttons = panel.region.locator("button[data-cmd]:visible")
    assert buttons.count() > 8
    assert buttons.evaluate_all("(all) => all.filter((one) => one.ariaDisabled !== 'true').length") == 0
    assert panel.region.locator(".nl-left").text_content() == ""


def test_after_a_restart_the_panel_says_how_to_go_on_and_leads_to_the_next_learner(page, running):
    page.restart()
    expect(running.status).to_have_text("kernel gone")
    expect(trouble(running)).to_contain_text("The kernel was restarted.")
    expect(trouble(running)).to_contain_text(
        re.compile(r"[1-9]\d* steps since the last checkpoint \(epoch 1, ")
    )
    check_nothing_is_offered(running)
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    running.region.locator("[data-part=resume]").click()
    expect(running.region.locator("[data-part=resume]")).to_contain_text("Copied")
    assert page.page.evaluate("navigator.clipboard.readText()") == LINE
    for theme in ("JupyterLab Dark", "JupyterLab Light"):
        page.theme(theme)
        for width in (400, 760, 1400):
            page.resize(width)
            page.screenshot(f"kernel-gone-{theme[-5:].strip().lower()}-{width}", running.region)
            wide = "(one) => one.scrollWidth <= one.clientWidth + 1"
            assert trouble(running).evaluate(wide) and running.region.evaluate(wide)
            assert axe(page.page, ".nl-panel") == []

    page.result(0)
    page.run(2)
    newer = PanelPage(page, 2)
    newer.wait_status("running")
    link = running.region.get_by_role("button", name="Show its panel", exact=True)
    link.click()
    expect(newer.region).to_be_focused()
    assert running.region.locator("button:visible").count() == 1
    assert running.region.bounding_box()["height"] < 60
    newer.stop()


def test_a_kernel_that_is_killed_has_died(page, running):
    os.kill(int(page.output_text(0)), signal.SIGKILL)
    expect(trouble(running)).to_contain_text("The kernel died.")
    check_nothing_is_offered(running)


def test_without_news_the_clock_stands_and_with_news_the_panel_lives_again(page, running):
    server = page.lab._process
    server.send_signal(signal.SIGSTOP)
    try:
        expect(running.hint).to_contain_text("no news from the kernel")
        expect(running.status).to_have_text("no contact")
        check_nothing_is_offered(running)
        page.screenshot("no-contact", running.region)
    finally:
        server.send_signal(signal.SIGCONT)
    running.wait_status("running")
    points = running.points
    running.wait_more_points_than(points)
    running.click("Pause")
    running.wait_status("paused")


def test_while_another_cell_runs_the_buttons_act(page):
    """JupyterLab sends them to a subshell. Without subshells the panel says that the kernel is busy."""
    page.run(2)
    panel = PanelPage(page, 2)
    panel.wait_status("running")
    page.run(3)
    page.wait("bench.kernel(path)?.status === 'busy'", "the cell runs")
    panel.click("Pause")
    panel.wait_status("paused")
    panel.click("Run")
    panel.wait_status("running")
    panel.wait_more_points_than(panel.points)
    page.page.wait_for_timeout(5000)  # looks at a busy kernel: the hint comes after the third
    expect(panel.hint).not_to_contain_text("the kernel is busy with a cell")
    assert page.prompt(3) == "[*]"
    page.interrupt()
    panel.wait_status("paused")
    expect(panel.button("Run")).not_to_have_attribute("aria-disabled", "true")


def test_a_learner_that_was_replaced_leaves_a_picture_with_one_line(page):
    panel, source = PanelPage(page, 1), "learner.step(5);\ndisplay(learner)"
    page.type(1, source)
    page.run(1)
    panel.wait_points(5)
    page.wait_idle()
    page.type(3, "import gc; del learner; gc.collect();")
    page.run(3)
    expect(trouble(panel)).to_contain_text("This learner was replaced or deleted")
    left = panel.region.locator("button:visible")
    assert left.all_text_contents() == []
    image = panel.region.locator("img")
    wait_for(lambda: image.evaluate("(img) => img.naturalWidth") > 300, "the picture is there")
    page.screenshot("replaced", panel.region)
    assert not page.complaints
