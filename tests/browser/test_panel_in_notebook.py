"""The panel in Jupyter Notebook 7, which is another page around the same cells."""

from __future__ import annotations

from pathlib import Path

from lab import Lab, wait_for
from playwright.sync_api import BrowserContext, expect

TRAINS = """
import time, torch
from torch import nn
from notebook_learner import ClassificationOutput, LearnerBuilder
from notebook_learner.metric import Loss

def step(model, batch):
    time.sleep(0.01)
    x, y = batch
    output = model(x)
    return ClassificationOutput(nn.functional.cross_entropy(output, y), output, y)

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
data = [(torch.randn(16, 8), torch.randint(0, 3, (16,))) for _ in range(60)]
builder = LearnerBuilder("run").metrics(Loss()).train_step(step).valid_step(step).num_epochs(1000)
learner = builder.build(model, torch.optim.Adam(model.parameters()), None, data, data[:5])
learner.fit()
"""


def test_a_blocking_fit_shows_a_panel_that_pauses_inspects_and_goes_on(
    lab: Lab, tabs: BrowserContext, tmp_path: Path
) -> None:
    path = lab.write([TRAINS])
    page = tabs.new_page()
    page.goto(f"{lab.server}notebooks/{path}?token={lab.token}")
    # Before its kernel is connected, Notebook takes a click on Run and runs nothing. The indicator
    # says "idle" in the first moment, too.
    wait_for(lambda: is_connected(lab, path), "the page has a kernel")
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for(timeout=60_000)
    page.locator(".jp-CodeCell").click()
    page.get_by_role("button", name="Run this cell and advance (Shift+Enter)").click()
    panel = page.get_by_role("region", name="Learner")
    status = panel.locator("[data-part=status]")
    expect(status).to_have_text("running", timeout=60_000)
    panel.get_by_role("button", name="Pause", exact=True).click()
    expect(status).to_have_text("paused")
    panel.get_by_role("button", name="Inspect", exact=True).click()
    expect(panel.get_by_text("Worst samples", exact=True)).to_be_visible()
    panel.get_by_role("button", name="Run", exact=True).click()
    expect(status).to_have_text("running")
    panel.get_by_role("button", name="Pause", exact=True).click()
    expect(status).to_have_text("paused")
    page.screenshot(path=tmp_path / "notebook-7.png")
    page.close()
    lab.shut_down_kernels(path)


def is_connected(lab: Lab, path: str) -> bool:
    """Whether a page talks to the kernel of that notebook."""
    return any(
        each["path"] == path and each["kernel"]["connections"] > 0 for each in lab.api("GET", "sessions")
    )
