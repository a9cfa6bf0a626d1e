"""The panel of a run that another kernel trains, the panel of a kernel of another release, and other widgets
beside it."""

from __future__ import annotations

import re
import statistics
import sys
import sysconfig
from pathlib import Path

import pytest
from panel_page import PanelPage
from playwright.sync_api import expect

sys.path.append(str(Path(__file__).parents[1] / "widget"))
from kernels import python_of

RELEASE = "6.31.0"
SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
"""
# Beside its own packages, and after them: that Python has another ipykernel, and no torch.
BORROW = "import site\nfor folder in {!r}:\n    site.addsitedir(folder)\n"

OTHER_WIDGET = """
import ipywidgets

def served(button):
    button.description = f"served after {len(stamps)} steps"

button = ipywidgets.Button(description="not yet", layout={"width": "300px"})
button.on_click(served)
button
"""


@pytest.fixture(scope="module")
def other_release(lab, tmp_path_factory):
    """A kernelspec with the ipykernel of another release."""
    folder = tmp_path_factory.mktemp("borrow")
    packages = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (folder / "sitecustomize.py").write_text(BORROW.format(packages))
    lab.add_kernel("other-release", [python_of(RELEASE)], {"PYTHONPATH": str(folder)})
    return "other-release"


def has_no_buttons(panel):
    verbs = re.compile("^(Run|Pause|Stop|Step|Rewind|Save$|Restore)")
    return panel.region.get_by_role("button", name=verbs).count() == 0


@pytest.mark.rounds(1)
def test_a_run_of_another_kernel_is_shown_as_it_grows_and_without_buttons(notebook):
    training = notebook(
        [
            SETUP + "learner = build('run', steps=50, epochs=1_000, renderer='silent')\nlearner.start()",
            "learner.num_epochs = learner.position.epoch + 1\nlearner.wait()\nlen(stamps)",
            "from notebook_learner import Artifacts\nArtifacts('run')",
        ]
    )
    training.result(0)
    directory = training.lab.root / Path(training.path).with_name("run")
    watching = notebook([f"from notebook_learner import Artifacts\nArtifacts({str(directory)!r})"])
    watching.run(0)
    panel = PanelPage(watching, 0)

    panel.wait_status("running")
    panel.wait_more_points_than(0)
    panel.wait_more_points_than(panel.points)
    assert has_no_buttons(panel)

    steps = int(training.result(1))

    panel.wait_status("finished")
    panel.wait_points(steps)
    watching.screenshot("watched")
    assert has_no_buttons(panel)
    assert not watching.complaints

    training.restart()
    training.run(2)
    afterwards = PanelPage(training, 2)
    afterwards.wait_status("finished")
    afterwards.wait_points(steps)
    assert has_no_buttons(afterwards)
    assert not training.complaints


@pytest.mark.soak
def test_a_kernel_of_another_release_pauses_soon_and_serves_other_widgets(notebook, other_release):
    page = notebook(
        [
            SETUP + "import ipykernel\nlearner = build('paused', steps=500, epochs=4)\nipykernel.__version__",
            OTHER_WIDGET,
            "learner.fit();",
            "stamps[-1]",
        ],
        other_release,
    )
    assert page.result(0) == f"'{RELEASE}'"
    page.result(1)
    button = page.outputs(1).get_by_role("button")
    panel, waited, before = PanelPage(page, 2), [], 0
    for attempt in range(3):
        page.run(2)
        panel.wait_status("running")
        panel.wait_more_points_than(before)
        if attempt == 0:
            button.click()
            expect(button).to_have_text(re.compile(r"served after \d+ steps"))
            panel.wait_more_points_than(panel.points)
            panel.wait_status("running")
        clicked = panel.click_and_time("Pause")
        page.wait_idle()
        panel.wait_status("paused")
        before = panel.points
        waited.append(float(page.result(3)) - clicked)
    # The machine may be busy with others for a moment: not the slowest of three.
    assert statistics.median(waited) < 0.5, waited

    page.run(2)
    panel.wait_status("running")
    page.reload()
    assert panel.seconds_until_back(before) < 5
    panel.wait_status("running")
    panel.click("Pause")
    panel.wait_status("paused")
