"""Sets that were evaluated, on the panel of a real JupyterLab: the numbers are those of logs, HDF5, history
and learner, and the table is readable in both themes and at both widths."""

from __future__ import annotations

import io
import json
from pathlib import Path

import h5py
import pytest
from accessibility import axe
from lab_page import Notebook
from panel_page import PanelPage

from notebook_learner.artifacts import Artifacts
from notebook_learner.renderer.text import number

CELLS = [
    """
import torch
from torch import nn
from notebook_learner import ClassificationOutput, LearnerBuilder
from notebook_learner.metric import Accuracy, ConfusionMatrix, Loss

torch.manual_seed(0)
torch.set_num_threads(1)

def step(model, batch):
    x, y = batch
    output = model(x)
    return ClassificationOutput(nn.functional.cross_entropy(output, y), output, y)

def data(count, noise):
    y = torch.randint(0, 4, (count * 16,))
    x = nn.functional.one_hot(y, 8).float() + noise * torch.randn(count * 16, 8)
    return list(zip(x.split(16), y.split(16)))

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
labels = ["bicycle", "car", "pedestrian", "traffic light"]
builder = LearnerBuilder("evaluated").metrics(Loss(), Accuracy()).metric_valid(ConfusionMatrix(labels))
builder.train_step(step).valid_step(step).num_epochs(2)
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
learner = builder.build(model, optimizer, None, data(30, 0.4), data(5, 0.4))
learner.fit();
""",
    "found = learner.evaluate({'clean': data(7, 0.2), 'noisy, in the rain and at night': data(9, 1.0)})",
    """
import json
history = {name: [float(learner.history.final(metric, f"test/{name}")) for metric in ("Loss", "Accuracy")]
           for name in found}
answers = {name: dict(each) for name, each in found.items()}
blocks = {name: each.record.blocks for name, each in learner.history.evaluated.items()}
texts = {name: each[-1].texts["Confusion Matrix"] for name, each in blocks.items()}
json.dumps([answers, history, texts])
""",
]
WIDE, NARROW = (1400, 1200), (400, 2300)
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
ROWS = """
(region) => [...region.querySelectorAll("[data-part=evaluated] tbody tr")].map(
    (row) => [...row.children].map((cell) => cell.textContent))
"""
# The words of a cell may not leave it, and no cell the panel, but for what scrolls.
CUT = """
(region) => {
    const edge = region.getBoundingClientRect();
    const cells = [...region.querySelectorAll("[data-part=evaluated] :is(th, td)")];
    return cells.filter((cell) => cell.checkVisibility()).filter((cell) => {
        const box = cell.getBoundingClientRect();
        return box.right > edge.right + 1 || box.left < edge.left - 1 || box.height === 0;
    }).map((cell) => cell.textContent);
}
"""


@pytest.fixture(scope="module")
def page(module_notebook):
    page = module_notebook(CELLS)
    page.result(0)
    page.run(1)
    return page


@pytest.fixture(scope="module")
def panel(page):
    panel = PanelPage(page, 0)
    panel.look()
    panel.region.locator("[data-part=evaluated] tbody tr").nth(7).wait_for()
    return panel


@pytest.mark.soak
def test_panel_answer_history_logs_and_hdf5_have_the_same_numbers(page: Notebook, panel: PanelPage):
    answers, history, texts = json.loads(page.result(2).strip("'").replace("\\\\", "\\"))
    shown = panel.region.evaluate(ROWS)
    run = page.lab.root / Path(page.path).parent / "evaluated"
    expected = []
    logged = Artifacts(run).evaluations
    with h5py.File(io.BytesIO((run / "artifacts.h5").read_bytes()), "r") as file:
        for name, of in answers.items():
            assert list(of) == ["Loss", "Accuracy"]
            batches = {"clean": 7}.get(name, 9)
            expected.append([f"{name}{batches} batches, weights of epoch 2, valid, step 5", ""])
            assert list(of.values()) == history[name]
            for metric, value in of.items():
                lines = (run / "test" / name / f"{metric}.log").read_text().splitlines()
                assert float(lines[-1].removesuffix(",final")) == value
                assert logged[name][metric] == value
                assert file[f"epochs/test/{name}/{metric}/value"][()].tolist() == [value]
                expected.append([metric, number(value, "%" if metric == "Accuracy" else "")])
            (said,) = file[f"series/test/{name}/Confusion Matrix/text"].asstr()[-1:]
            assert said == texts[name]
            expected.append(["Confusion Matrix", texts[name]])
    assert shown == expected


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_table_of_sets_is_readable(page: Notebook, panel: PanelPage, theme: str, size: tuple[int, int]):
    page.theme(THEMES[theme])
    page.resize(*size)
    panel.look()
    page.screenshot(f"evaluated-{theme}-{size[0]}")
    page.screenshot(f"evaluated-{theme}-{size[0]}-table", panel.region.locator("[data-part=evaluated]"))
    assert panel.region.evaluate(CUT) == []
    cell = page.cell(panel.cell)
    cell.evaluate("(element) => { element.id = 'looked-at'; }")
    assert axe(page.page, "#looked-at .nl-panel") == []


def test_the_page_complained_of_nothing(page: Notebook, panel: PanelPage):
    assert not page.complaints
