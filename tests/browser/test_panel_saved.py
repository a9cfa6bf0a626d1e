"""What is left of the panel in a notebook's file, and what it looks like where no kernel runs."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from lab import wait_for
from lab_page import Notebook
from panel_page import PanelPage
from playwright.sync_api import expect

VIEW = "application/vnd.jupyter.widget-view+json"
PNG = "image/png"
KERNEL = "here-only"
SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
"""
CELLS = [SETUP + "learner = build('saved', steps=20, epochs=10)", "learner.fit();"]


class WithoutKernel(Notebook):
    """A notebook whose kernel is gone: JupyterLab asks for another, and gets none."""

    def _wait_ready(self) -> None:
        self.page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
        self.page.locator(".jp-Dialog").wait_for(state="detached")
        self.wait("bench.panel(path)?.context.isReady", "the notebook is there")
        expect(self.page.locator(".jp-Toolbar").get_by_text("No Kernel")).to_have_count(1)
        assert self.page.evaluate("(path) => bench.kernel(path)", self.path) is None


@dataclass(frozen=True)
class Trained:
    """A notebook that trained ten epochs, and its file as it was saved then."""

    page: Notebook
    panel: PanelPage
    file: Path
    grown: int

    @property
    def outputs(self) -> list[dict[str, Any]]:
        return outputs_in(self.file)


def outputs_in(file: Path) -> list[dict[str, Any]]:
    """What the cell that trained shows, as it is in a file. The server may be writing it just now."""
    for _ in range(100):
        with suppress(json.JSONDecodeError):
            return json.loads(file.read_text())["cells"][1]["outputs"]
        time.sleep(0.05)
    raise AssertionError(f"{file} is no notebook: {file.read_text()[:200]!r}")


@pytest.fixture(scope="module")
def trained(module_notebook, lab):
    lab.add_kernel(KERNEL, [sys.executable])
    page = module_notebook([*CELLS, "learner.tools.freeze()"], KERNEL)
    file = lab.root / page.path
    before = file.stat().st_size
    page.run(0)
    page.run(1)
    panel = PanelPage(page, 1)
    panel.wait_status("finished")
    page.wait_idle()
    page.save()
    copy = shutil.copy(file, file.with_name("elsewhere.ipynb"))
    return Trained(page, panel, copy, copy.stat().st_size - before)


@pytest.fixture
def without_kernel(trained, lab):
    """The notebook as it was saved, and trusted, on a machine where its kernel does not exist."""
    shutil.rmtree(lab.home / "data" / "kernels" / KERNEL, ignore_errors=True)
    page, path = trained.page, str(trained.file.relative_to(lab.root))
    return WithoutKernel(lab, page._context, path, page._shots, page._opened)


def wait_picture(page: Notebook, cell: int) -> dict[str, float]:
    """Until a picture is drawn below a cell; where it stands."""
    picture = page.outputs(cell).locator("img")
    expect(picture).to_have_count(1)
    picture.scroll_into_view_if_needed()
    page.page.wait_for_function("(img) => img.complete && img.naturalWidth > 0", arg=picture.element_handle())
    box = picture.bounding_box()
    assert box["width"] > 400 and box["height"] > 150, box
    return box


@pytest.mark.soak
def test_the_file_is_valid_and_small_and_has_picture_and_table_below_the_panel(trained):
    saved = nbformat.read(trained.file, as_version=4)
    nbformat.validate(saved)
    assert "widgets" not in saved.metadata
    assert 10_000 < trained.grown < 200_000
    shown, table, still = (each for each in saved.cells[1].outputs if each.output_type == "display_data")
    assert VIEW in shown.data and PNG not in shown.data
    assert shown.data["text/plain"] == ""
    assert VIEW not in still.data and VIEW not in table.data
    assert "<td>10/10</td>" in table.data["text/html"]
    assert re.search(r"^ *10/10 +\d", table.data["text/plain"], re.MULTILINE), table.data["text/plain"]
    assert base64.b64decode(still.data[PNG]).startswith(b"\x89PNG")
    assert still.data["text/plain"].startswith("saved · finished at epoch 10")
    assert re.search(r"^train +Loss +\d", still.data["text/plain"], re.MULTILINE), still.data["text/plain"]
    assert len(saved.cells[1].outputs) == 3  # one picture, redrawn in its place


def converted(file: Path, *options: str) -> str:
    """What nbconvert makes of a notebook."""
    command = [sys.executable, "-m", "jupyter", "nbconvert", *options, "--to", "html", "--stdout", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_html_shows_the_picture_and_has_no_script_of_the_panel(trained):
    page = converted(trained.file)
    shown = trained.outputs[-1]["data"][PNG].replace("\n", "")
    assert f"data:image/png;base64,{shown}" in page.replace("\n", "")
    assert "<td>10/10</td>" in page and "the panel of a learner" not in page
    assert 'role="region"' not in page and "notebook_learner/widget" not in page
    assert VIEW not in page


def test_a_page_without_a_kernel_shows_the_picture_and_nothing_in_its_way(without_kernel):
    page = without_kernel
    picture = wait_picture(page, 1)
    page.screenshot("saved-without-kernel")
    # In place of the panel nothing, also no word of JupyterLab's on a widget that it misses.
    instead, table, _ = page.outputs(1).all()
    assert not instead.is_visible()
    expect(table.get_by_role("cell", name="10/10", exact=True)).to_be_visible()
    box = table.bounding_box()
    assert box["y"] + box["height"] <= picture["y"] + 1, (box, picture)


def test_notebook_7_shows_picture_and_table_and_no_error_without_a_kernel(without_kernel, tabs, lab):
    path = without_kernel.path
    page = tabs.new_page()
    page.goto(f"{lab.server}notebooks/{path}?token={lab.token}")
    page.locator(".jp-Dialog").get_by_role("button", name="No Kernel").click()
    expect(page.get_by_role("cell", name="10/10", exact=True)).to_be_visible()
    expect(page.locator(".jp-RenderedImage img")).to_be_visible()
    expect(page.get_by_text(re.compile("widget", re.IGNORECASE)).locator("visible=true")).to_have_count(0)
    page.close()


def test_a_living_panel_stands_alone_and_what_is_saved_beside_it_is_of_now(notebook, lab):
    page = notebook([SETUP + "learner = build('alone', steps=2000, epochs=1)", "learner.fit();"])
    page.run(0)
    page.run(1)
    panel = PanelPage(page, 1)
    panel.wait_status("running")
    panel.wait_more_points_than(20)
    shown, table, still = page.outputs(1).all()
    expect(still.locator("img")).to_have_count(0)
    page.save()
    expect(still.locator("img")).to_have_count(1)  # drawn for the file
    file = lab.root / page.path
    wait_for(lambda: PNG in outputs_in(file)[2]["data"], "the picture is in the file")
    assert re.search("· as of epoch 1, train, step [1-9]", outputs_in(file)[2]["data"]["text/plain"][0])
    panel.click("Pause")
    panel.wait_status("paused")
    page.wait_idle()
    assert shown.is_visible() and not table.is_visible() and not still.is_visible()
    place = panel.position.text_content()
    page.save()
    assert outputs_in(file)[2]["data"]["text/plain"][0].startswith(f"alone · paused at {place}")
    step = int(re.search("step ([0-9]+)", place)[1])
    panel.click("Step")
    panel.wait_position(f"step {step + 1} of 2000")
    place = panel.position.text_content()
    page.save()
    headline = f"alone · paused at {place}"
    wait_for(lambda: outputs_in(file)[2]["data"]["text/plain"][0].startswith(headline), headline)


def test_a_panel_whose_button_trained_leaves_table_and_picture_below_the_cell_that_shows_it(notebook, lab):
    lab.add_kernel(KERNEL, [sys.executable])
    page = notebook([SETUP, "learner = build('shown', steps=20, epochs=3)\nlearner"], KERNEL)
    page.result(0)
    page.result(1)
    panel = PanelPage(page, 1)
    panel.wait_status("ready")
    panel.click("Run")
    panel.wait_status("finished")
    page.save()
    file = lab.root / page.path
    wait_for(lambda: PNG in outputs_in(file)[-1]["data"], "the picture is in the file")
    shown, table, still = page.outputs(1).all()
    assert shown.is_visible() and not table.is_visible() and not still.is_visible()
    page.screenshot("shown-and-trained-by-a-button")
    assert [sorted(each["data"]) for each in outputs_in(file)] == [
        [VIEW, "text/plain"],
        ["text/html", "text/plain"],
        [PNG, "text/plain"],
    ]
    html = converted(file)
    assert "<td>3/3</td>" in html and "data:image/png;base64," in html and VIEW not in html

    lab.shut_down_kernels(page.path)
    shutil.rmtree(lab.home / "data" / "kernels" / KERNEL)
    alone = shutil.copy(file, file.with_name("alone.ipynb"))
    page = WithoutKernel(lab, page._context, str(alone.relative_to(lab.root)), page._shots, page._opened)
    wait_picture(page, 1)
    instead, table, _ = page.outputs(1).all()
    assert not instead.is_visible()
    expect(table.get_by_role("cell", name="3/3", exact=True)).to_be_visible()
    page.screenshot("shown-and-saved-without-kernel")


@pytest.mark.soak
def test_a_frozen_learner_leaves_the_picture_in_page_and_file(trained):
    page, panel = trained.page, trained.panel
    panel.look()

    assert page.result(2) == ""

    expect(panel.region).to_have_count(0)
    wait_picture(page, 1)
    page.screenshot("frozen")
    assert page.outputs(1).filter(has_text=re.compile("widget|panel")).count() == 0
    page.save()
    file = page.lab.root / page.path
    nbformat.validate(nbformat.read(file, as_version=4))
    assert VIEW not in file.read_text()
    assert [PNG in each["data"] for each in outputs_in(file)] == [False, False, True]
    assert not page.complaints


@pytest.mark.soak
def test_a_program_that_runs_a_notebook_gets_lines_and_a_picture_and_waits_for_nobody(tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in CELLS])
    file = tmp_path / "run.ipynb"
    nbformat.write(notebook, file)

    page = converted(file, "--execute")

    assert "data:image/png;base64," in page
    text = re.sub("<[^>]*>", "", page)
    assert re.search(r"^ *10/10 +\d", text, re.MULTILINE) and "finished after" in text
    assert "the panel of a learner" not in text and VIEW not in page
    assert (tmp_path / "saved" / "artifacts.h5").is_file()
