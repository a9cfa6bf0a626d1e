"""The tabs of the panel that show no curve: a confusion matrix, a picture, a text, and chosen samples."""

from __future__ import annotations

import re

import pytest
from accessibility import axe
from panel_page import PanelPage
from panel_room import check_room
from playwright.sync_api import expect

SETUP = """
import time
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from notebook_learner import LearnerBuilder
from notebook_learner.metric import Accuracy, AccumulatedText, ConfusionMatrix, Loss

CLASSES = 15
torch.manual_seed(0)
y = torch.arange(150) % CLASSES
x = 0.6 * torch.rand(150, 1, 8, 8)
for digit in range(CLASSES):  # a class is a bright row and column
    x[y == digit, :, digit // 4 * 2] += 0.4
    x[y == digit, :, :, digit % 4 * 2] += 0.4
data = TensorDataset(x, y)

class Sizes(AccumulatedText):
    name = "Sizes"
    def reset(self):
        self.sizes = []
    def update(self, item):
        self.sizes = [*getattr(self, "sizes", []), len(item.targets)]
    def text(self):
        return f"{len(self.sizes)} batches\\nthe last one has {self.sizes[-1]} samples"

class Bars(Sizes):
    name = "Bars"
    def picture(self):
        figure = Figure(figsize=(4, 2))
        figure.subplots().bar(range(len(self.sizes)), self.sizes)
        return figure

def shown(name, labels):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, CLASSES))
    train, valid = DataLoader(data, batch_size=10, shuffle=True), DataLoader(data, batch_size=40)
    learner = (
        LearnerBuilder(name).loss(nn.functional.cross_entropy).metrics(Loss(), Accuracy())
        .metrics(ConfusionMatrix(labels), Sizes(), Bars(), train=False).num_epochs(9)
        .samples(valid, n=6, labels=labels)
        .build(model, torch.optim.Adam(model.parameters(), lr=0.05), None, train, valid)
    )
    learner.step_epoch()
    learner.step_epoch()
    return learner

runs = 0
"""
CELLS = {
    "setup": SETUP,
    "learner": "runs += 1\n"
    "learner = shown(f'{runs}/sheets', [f'class {n}' for n in range(CLASSES)])\nlearner",
    "rewind": "learner.rewind(to=(2, 3))",
    "train": "learner.step_epoch()",
}
LEARNER, REWIND, TRAIN = (list(CELLS).index(name) for name in ("learner", "rewind", "train"))


@pytest.fixture
def panel(page):
    """A panel after two epochs, in a window of 1400 x 900."""
    page.resize(1400, 900)
    page.theme("JupyterLab Light")
    page.result(LEARNER)
    panel = PanelPage(page, LEARNER)
    panel.wait_status("paused")
    return panel


def tab(panel, name):
    panel.region.get_by_role("tab", name=name, exact=True).click()
    return panel.region.locator("[data-part=sheets]")


def test_matrix_samples_picture_and_text_have_tabs_of_their_own(panel):
    page = panel.notebook
    expect(panel.region.get_by_role("tab")).to_have_text(
        ["Loss", "Accuracy", "Confusion Matrix", "Sizes", "Bars", "Samples"]
    )
    matrix = tab(panel, "Confusion Matrix")
    expect(panel.plot).to_be_hidden()
    expect(matrix).to_contain_text("valid, epoch 2")
    expect(matrix.locator("td")).to_have_count(15 * 15)
    expect(matrix.locator("td[data-right=true]").first).to_have_attribute(
        "title", re.compile(r"^class 0 for class 0: \d+ of 10$")
    )
    samples = tab(panel, "Samples")
    expect(samples.locator("thead th")).to_have_text(
        ["Sample", "Target", "Prediction", "after epoch 1", "Loss"]
    )
    expect(samples.locator("tbody tr")).to_have_count(6)
    expect(samples.get_by_role("img", name="sample 1", exact=True)).to_be_visible()
    expect(samples.locator("tbody tr").nth(3).locator("td").first).to_have_text("class 3")
    text = tab(panel, "Sizes")
    expect(text.locator("pre")).to_have_text("4 batches\nthe last one has 30 samples")
    picture = tab(panel, "Bars")
    expect(picture.get_by_role("img", name="Bars")).to_be_visible()
    tab(panel, "Loss")
    expect(panel.plot).to_be_visible()
    for name in ("Confusion Matrix", "Samples", "Sizes", "Bars"):
        for dark in (False, True):
            page.theme("JupyterLab Dark" if dark else "JupyterLab Light")
            for width in (1400, 400):
                page.resize(width, 900)
                tab(panel, name)
                check_room(panel)
                assert axe(page.page, ".nl-panel") == []
                page.screenshot(f"sheet-{name}-{'dark' if dark else 'light'}-{width}", panel.region)


def test_going_back_takes_sheets_back_and_training_on_brings_new_ones(panel):
    page = panel.notebook
    samples = tab(panel, "Samples")
    expect(samples).to_contain_text("after epoch 2")
    page.result(REWIND)
    panel.look()
    expect(samples).to_contain_text("after epoch 1")
    expect(samples.locator("thead th")).to_have_count(4)
    page.result(TRAIN)
    panel.look()
    expect(samples).to_contain_text("after epoch 2")
    page.save()
    page.reload()
    again = PanelPage(page, LEARNER)
    again.look()
    expect(tab(again, "Samples")).to_contain_text("after epoch 2")


def test_a_strip_shows_a_curve(panel):
    tab(panel, "Samples")
    panel.click("Compact")
    expect(panel.region.locator(".nl-readout")).to_be_visible()
    assert panel.region.bounding_box()["height"] <= 120
