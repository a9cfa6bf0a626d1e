"""The README's picture of the panel, from a real run in a real JupyterLab: `python tests/browser/picture.py`.

It trains a small network on scikit-learn's digits, pauses in the middle of an epoch, and takes the panel in
the light and in the dark theme: about half a minute.
"""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import chromium
from lab import Lab
from lab_page import Notebook
from panel_page import PanelPage
from PIL import Image
from playwright.sync_api import sync_playwright

PICTURES = Path(__file__).parents[2] / "tutorials" / "pictures"
THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
WIDTH, HEIGHT = 1000, 1600
SHARPNESS = 1.5
"""Pixels of the picture for one of the page: it is shown on all kinds of screens."""
COLOURS = 128
"""A panel has few; so a picture takes a third of the bytes."""

TRAINING = """
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from notebook_learner import LearnerBuilder
from notebook_learner.breakpoint import NonFinite
from notebook_learner.metric import Accuracy, Loss

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
targets = torch.tensor(digits.target)
x, x_valid, y, y_valid = train_test_split(images, targets, test_size=0.2, random_state=0, stratify=targets)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))
learner = (
    LearnerBuilder("runs/digits")
    .loss(nn.functional.cross_entropy)
    .metrics(Loss(), Accuracy())
    .num_epochs(20)
    .seed(0)
    .break_on(NonFinite())
    .with_file_checkpointer()
    .build(
        model,
        torch.optim.Adam(model.parameters(), lr=1e-3),
        None,
        DataLoader(TensorDataset(x, y), 32, shuffle=True),
        DataLoader(TensorDataset(x_valid, y_valid), 64),
    )
)
"""
PAUSED = "learner.run_until((12, 30))"
"""The twelfth epoch of twenty, after the thirtieth of its 45 steps."""


def main() -> None:
    """Take the pictures."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, closing(Lab(Path(folder, "lab"))) as lab:
        lab.wait_until_up()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium.find(playwright), args=chromium.ARGUMENTS
            )
            size = {"width": WIDTH, "height": HEIGHT}
            with browser.new_context(viewport=size, device_scale_factor=SHARPNESS) as tabs:
                photograph(Notebook(lab, tabs, lab.write([TRAINING, PAUSED, "learner"]), Path(folder), []))
            browser.close()


def photograph(page: Notebook) -> None:
    """Run the cells, and take the panel of the last one in each theme."""
    page.wait_idle()
    page.resize(WIDTH, HEIGHT)
    for cell in range(3):
        page.result(cell)
    panel = PanelPage(page, 2)
    panel.wait_status("paused")
    for name, theme in THEMES.items():
        page.theme(theme)
        # Drawn on a canvas, a frame or two after the theme has changed; nothing in the page tells when.
        page.page.wait_for_timeout(1000)
        shrink(page.screenshot(f"panel_{name}", panel.region), PICTURES / f"panel_{name}.png")


def shrink(taken: Path, kept: Path) -> None:
    """With few colours, as small as PNG gets."""
    with Image.open(taken) as picture:
        few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        few.save(kept, optimize=True)
    print(f"{kept.relative_to(PICTURES.parents[1])}: {kept.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
