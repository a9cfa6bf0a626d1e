"""Keys pressed in the panel: JupyterLab has its own, and the panel those of its controls."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from panel_page import PanelPage
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
"""
# What JupyterLab's own keys do changes the page; that it heard a key is the same for all of them.
COUNT_KEYS = """
(keys) => {
    window.heard = [];
    const { commands } = window.jupyterapp;
    for (const key of keys) {
        commands.addCommand(`test:${key}`, { execute: () => { window.heard.push(key); } });
        commands.addKeyBinding({ command: `test:${key}`, keys: [key], selector: "body" });
    }
}
"""
PASS = {
    "Control+F9": "Ctrl F9",
    "F9": "F9",
    "Alt+Shift+F8": "Alt Shift F8",
    "Control+Shift+J": "Ctrl Shift J",
}
CONTROLS = (
    ("button", "Save"),
    ("spinbutton", "How many steps to take"),
    ("slider", "Smoothing"),
    ("slider", "Rewind to a step: arrows choose it, Enter goes there"),
    ("tab", "Loss"),
    ("group", "Plot: arrows read it, plus and minus zoom, shift and arrows move, 0 shows everything"),
    ("log", "The end of experiment.log"),
)


@pytest.fixture
def panel(notebook):
    page = notebook([SETUP + "learner = build('keys', steps=40)\nlearner"])
    page.run(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    for taken in (1, 2):
        panel.click("Step")
        panel.wait_points(taken)
    page.wait_idle()
    return panel


def test_control_and_function_keys_reach_jupyterlab_from_every_control(panel):
    page = panel.notebook.page
    page.evaluate(COUNT_KEYS, [*PASS.values(), "Q"])
    for role, name in CONTROLS:
        panel.region.get_by_role(role, name=name, exact=True).focus()
        for key in PASS:
            page.keyboard.press(key)
        page.keyboard.press("q")
        assert page.evaluate("heard.splice(0)") == list(PASS.values()), name
    page.locator(".jp-Notebook .jp-Cell").first.focus()
    page.keyboard.press("q")
    assert page.evaluate("heard.splice(0)") == ["Q"], "outside of the panel the key is JupyterLab's"


def test_control_s_after_a_click_in_the_panel_saves_the_notebook(panel):
    page = panel.notebook
    file = page.lab.root / page.path
    assert json.loads(file.read_text())["cells"][0]["outputs"] == []
    panel.click("Save")
    page.press("Control+s")
    page.wait("!bench.panel(path).context.model.dirty", "the notebook is saved")
    assert len(json.loads(file.read_text())["cells"][0]["outputs"]) > 0


def test_shift_enter_on_a_button_runs_the_cell_and_does_not_press_the_button(panel):
    page = panel.notebook
    assert page.prompt(0) == "[1]"
    panel.button("Step").focus()
    page.press("Shift+Enter")
    expect(page.cell(0).locator(".jp-InputPrompt").first).to_have_text("[2]:")
    page.wait_idle()
    panel.wait_position("epoch 1, train, step 0 of 40")
