"""The panel in a real page of marimo, in `edit` and `run`: train, pause, step, rewind, and load it anew."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from lab import PATIENCE
from marimo_server import MarimoPage, MarimoServer
from panel_page import PanelPage
from playwright.sync_api import Browser, expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import build
learner = build("runs/page", steps=5000, epochs=50)
"""
CELLS = {
    "setup": SETUP,
    "shown": "learner",
    "train": "model = learner.fit()",
    "after": "model.linear",
    "apart": "'goes on'",
}

PAUSED = re.compile(r"paused at epoch \d+, train, step \d+ of 5000; fit\(\) goes on from here")

Open = Callable[..., MarimoPage]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a page of the notebook; the first call starts the server."""
    servers: list[MarimoServer] = []
    shots = Path(os.environ.get("NOTEBOOK_LEARNER_SHOTS") or tmp_path)
    with ExitStack() as stack:

        def open_one(mode: Any = "edit", theme: str = "light", prefers: Any = "light") -> MarimoPage:
            if not servers:
                servers.append(stack.enter_context(closing(MarimoServer(tmp_path, mode, CELLS, theme))))
            context = browser.new_context(viewport={"width": 1200, "height": 1400}, color_scheme=prefers)
            page = stack.enter_context(context).new_page()
            page.set_default_timeout(1000 * PATIENCE)
            page.goto(servers[0].address)
            stack.callback(lambda: page.screenshot(path=shots / f"marimo-{mode}-{theme}.png"))
            return MarimoPage(page)

        yield open_one


def panel(page: MarimoPage, cell: str) -> PanelPage:
    return PanelPage(page, cell)  # type: ignore[arg-type]


def test_train_pause_step_rewind_and_reload(opened: Open) -> None:
    page = opened()
    shown, below_fit = panel(page, "shown"), panel(page, "train")
    shown.wait_status("running")
    below_fit.wait_status("running")
    shown.wait_more_points_than(3)

    shown.click("Pause")  # the cell is busy
    shown.wait_status("paused")
    below_fit.wait_status("paused")
    expect(page.outputs("train")).to_contain_text(PAUSED)
    expect(page.outputs("after")).to_contain_text("ancestor was stopped")
    assert page.page.get_by_text("Traceback (most recent").count() == 0

    stood = shown.points
    below_fit.click("Step")
    shown.wait_points(stood + 1)
    shown.click("Rewind")
    below_fit.wait_points(stood)

    page.page.reload()
    shown.wait_status("paused")
    shown.wait_points(stood)
    expect(page.outputs("train")).to_contain_text(PAUSED)

    shown.click("Run")  # no cell is busy: it trains in the background
    shown.wait_status("running")
    shown.wait_more_points_than(stood + 3)
    shown.stop()
    shown.wait_status("stopped")


def test_a_page_that_is_loaded_again_while_a_cell_trains_and_the_interrupt_button(opened: Open) -> None:
    page = opened()
    below_fit = panel(page, "train")
    below_fit.wait_status("running")
    below_fit.wait_more_points_than(3)
    before = below_fit.points

    page.page.reload()
    below_fit.wait_status("running")
    below_fit.wait_more_points_than(before)

    page.page.get_by_test_id("interrupt-button").click()
    below_fit.wait_status("paused")
    expect(page.outputs("train")).to_contain_text(PAUSED)
    assert page.page.get_by_text("Traceback (most recent").count() == 0


@pytest.mark.parametrize(("theme", "prefers"), [("light", "dark"), ("dark", "light")])
def test_the_panel_has_the_theme_of_marimo_and_not_the_browsers(
    opened: Open, theme: str, prefers: str
) -> None:
    shown = panel(opened(theme=theme, prefers=prefers), "shown")
    shown.wait_status("running")
    expect(shown.region).to_have_attribute("data-theme", theme)
    shown.click("Pause")
    shown.wait_status("paused")


def test_visitors_of_an_app_are_told_who_has_the_run_and_how_to_go_on(opened: Open) -> None:
    first = opened("run")
    begun = panel(first, "shown")
    begun.wait_status("running")

    second = opened("run")
    expect(second.outputs("train")).to_contain_text(
        "another visitor, or this page before it was loaded again"
    )
    expect(second.outputs("train")).to_contain_text("with .resume() on the builder the run goes on here")

    begun.click("Pause")  # of a cell in a thread of its own
    begun.wait_status("paused")
    expect(first.outputs("train")).to_contain_text(PAUSED)
    expect(first.outputs("apart")).to_contain_text("goes on")
    assert first.page.get_by_text("internal error").count() == 0

    first.page.reload()  # to marimo another visitor
    expect(begun.status).to_have_text("running")
    expect(first.outputs("train")).to_contain_text("'runs/page' held a run, which is now in 'runs/page-1'")
    expect(first.outputs("train")).to_contain_text(".resume() on the builder goes on with the run")
    begun.click("Pause")
    begun.wait_status("paused")
