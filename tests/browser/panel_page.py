"""The panel of a learner as people know it: buttons by their names, values by their place."""

from __future__ import annotations

import re
import time

from lab import PATIENCE
from lab_page import Notebook
from playwright.sync_api import Error, Locator, expect

expect.set_options(timeout=1000 * PATIENCE)

# Seen before the panel sees it, on the clock that the kernel has too.
REMEMBER_CLICKS = (
    "(panel) => panel.addEventListener('click', () => { window.clickedAt = Date.now() / 1000; }, true)"
)


def panel_after_training(page: Notebook, points: int, cell: int = 0) -> PanelPage:
    """The panel that a cell shows, once the next one has trained so many steps and paused."""
    page.result(cell)  # to its end: until then the panel of an earlier run may be there, and goes
    panel = PanelPage(page, cell)
    panel.wait_status("ready")
    page.result(cell + 1)
    panel.look()
    panel.wait_status("paused")
    panel.wait_points(points)
    return panel


class PanelPage:
    """The panel that one cell of a notebook shows."""

    def __init__(self, notebook: Notebook, cell: int) -> None:
        self.notebook, self.cell = notebook, cell
        self.region = notebook.outputs(cell).get_by_role("region", name="Learner")
        self.status = self.region.locator("[data-part=status]")
        self.position = self.region.locator("[data-part=position]")
        self.plot = self.region.locator("[data-part=plot]")
        self.log = self.region.locator("[data-part=log]")
        self.error = self.region.locator("[data-part=error]")
        self.checkpoints = self.region.locator("[data-part=checkpoints]")
        self.breakpoints = self.region.locator("[data-part=breakpoints]")
        self.inspection = self.region.locator("[data-part=inspection]")
        self.ranks = self.inspection.get_by_role("combobox", name="Inspect rank", exact=True)
        self.hint = self.region.locator("[data-part=hint]")
        self.why = self.region.locator("[data-part=reason]")
        self.slider = self.region.get_by_role("slider", name="Rewind to a step")

    # -- buttons ---------------------------------------------------------------------------------------

    def button(self, name: str) -> Locator:
        """Run, Pause, Step, Step epoch, Rewind, Stop, Save."""
        return self.region.get_by_role("button", name=name, exact=True)

    def switch(self, name: str) -> Locator:
        """That of a breakpoint."""
        return self.breakpoints.get_by_role("switch", name=name, exact=True)

    def usable(self, name: str) -> Locator:
        """A button, once it can be used."""
        button = self.button(name)
        expect(button).not_to_have_attribute("aria-disabled", "true")
        return button

    def click(self, name: str) -> None:
        """Press a button once it can be used."""
        self.usable(name).click()

    def click_and_time(self, name: str) -> float:
        """Press a button; when the page heard of it, in seconds since 1970."""
        self.region.evaluate(REMEMBER_CLICKS)
        self.click(name)
        return float(self.notebook.page.evaluate("window.clickedAt"))

    def stop(self) -> None:
        """Press Stop, and say yes to its question."""
        self.click("Stop")
        self.button("Really stop?").click()

    def restore(self, label: str) -> None:
        """Press Restore beside a checkpoint, and say yes to its question."""
        self.click(f"Restore {label}")
        self.checkpoints.get_by_role("button", name=re.compile("^Really")).click()

    def reason(self, name: str) -> str:
        """Why a button cannot be used, as a screen reader is told; empty if it can."""
        button = self.button(name)
        if button.get_attribute("aria-disabled") != "true":
            return ""
        described_by = button.get_attribute("aria-describedby")
        return self.region.locator(f"id={described_by}").inner_text() if described_by else ""

    # -- what it shows ---------------------------------------------------------------------------------

    @property
    def points(self) -> int:
        """How many points the curve of training has."""
        return int(self.plot.get_attribute("data-points") or 0)

    def look(self) -> None:
        """Scroll to it: a panel that cannot be seen draws nothing, and gets no news."""
        while True:
            self.region.wait_for()
            try:
                return self.region.scroll_into_view_if_needed()
            except Error as error:
                if "not attached" not in str(error):
                    raise
                # marimo draws the output of a cell again when the cell ends.

    def wait_status(self, status: str) -> None:
        """Until the status is this."""
        self.look()
        expect(self.status).to_have_text(status)

    def wait_position(self, text: str) -> None:
        """Until it stands there."""
        expect(self.position).to_contain_text(text)

    def wait_points(self, count: int) -> None:
        """Until the curve has exactly so many points."""
        expect(self.plot).to_have_attribute("data-points", str(count))

    def wait_more_points_than(self, count: int) -> None:
        """Until the curve grew."""
        self.notebook.page.wait_for_function(
            "([plot, count]) => Number(plot.dataset.points) > count", arg=[self.plot.element_handle(), count]
        )

    def seconds_until_back(self, points: int) -> float:
        """How long from now until the panel is there with at least so many points."""
        began = time.monotonic()
        self.look()
        self.wait_more_points_than(points - 1)
        return time.monotonic() - began
