"""What the panel saves by a button, and how it tells of an end, in a real page."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest
from accessibility import axe
from lab import wait_for
from panel_page import PanelPage, panel_after_training
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
from notebook_learner.breakpoint import NonFinite
from notebook_learner.metric import Metric
import json

class Odd(Metric):
    name = '<b>"x" & y'

    def update(self, item):
        return item.loss.sqrt(), 1

def measured():
    # JSON has no NaN of its own; Python's has.
    history = learner.history
    train = history["train", "Loss"].tolist()
    ends = [len(history["train", "Loss", epoch]) for epoch in history.epoch_numbers("valid").tolist()]
    valid = history.epochs("Loss", "valid").tolist()
    return json.dumps([train, ends, valid])
"""
CELLS = {
    "setup": SETUP + "runs = 0",
    "learner": "runs += 1\n"
    "learner = build(f'{runs}/saved run', steps=40, epochs=9, metrics=[Odd()])\nlearner",
    "train": "learner.step(70); learner.rewind(10); learner.lr = 0.1; learner.step(60);",
    "measured": "print(measured())",
}
SVG = "{http://www.w3.org/2000/svg}"
HEAD = 50  # pixels of the title and the legend


@pytest.fixture
def trained(page):
    """A panel of two epochs and a bit, with a NaN in the middle and a branch that was left."""
    return panel_after_training(page, 112, cell=1)


def saved(panel, name):
    """What a button saves: the name of the file, and its bytes."""
    with panel.notebook.page.expect_download() as download:
        panel.button(name).click()
    expect(panel.hint).to_contain_text(f"saved {download.value.suggested_filename}")
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def keep(panel, name, data):
    """Beside the pictures of this run, to be looked at."""
    file = panel.notebook.screenshot("exports-panel").with_name(name)
    file.write_bytes(data)
    return file


def table(data):
    return list(csv.reader(io.StringIO(data.decode(), newline="")))


def differs(rows, train, ends, valid):
    """The first row that is not what the learner has measured; None if all are."""
    at_end = dict(zip(np.cumsum(ends).tolist(), valid, strict=True))
    if rows[0] != ["step", "train", "valid", "epoch", "seconds"] or len(rows) != 1 + len(train):
        return 0
    for step, (row, value) in enumerate(zip(rows[1:], train, strict=True), start=1):
        cells = [float(cell) if cell else None for cell in row[1:3]]
        if repr([int(row[0]), *cells]) != repr([step, value, at_end.get(step)]):
            return step
    return None


def test_the_values_are_those_of_the_learner_to_the_last_digit(trained):
    measured = json.loads(trained.notebook.result(list(CELLS).index("measured")))
    trained.button("Recent").click()  # saved is the whole run all the same
    name, data = saved(trained, "Save the values as CSV")
    assert name == "saved_run-Loss.csv"
    rows = table(data)
    assert differs(rows, *measured) is None
    rows[7][1] = repr(float(np.nextafter(float(rows[7][1]), 1)))
    assert differs(rows, *measured) == 7
    assert not trained.notebook.complaints


def drawn(panel):
    """How many points the lines of the plot have, in the file: raw and smoothed."""
    name, data = saved(panel, "Save the plot as SVG")
    root = ElementTree.fromstring(data)
    paths = {
        path.get("data-split", "") + " " + path.get("data-line", ""): path for path in root.iter(SVG + "path")
    }
    points = {line: len(re.findall("[ML]", path.get("d"))) for line, path in paths.items() if line.strip()}
    return name, data, root, points


def test_the_svg_has_each_point_of_the_curves_and_each_word_of_the_page(trained):
    name, data, root, points = drawn(trained)
    keep(trained, name, data)
    assert name == "saved_run-Loss.svg"
    assert points == {"train raw": 112, "train smooth": 112, "valid raw": 2, "valid smooth": 2}
    words = [text.text for text in root.iter(SVG + "text")]
    assert {"saved run · Loss", "train", "valid", "branches", "step", "epoch", "1", "2", "3"} <= set(words)
    assert re.match(r"smoothing \d+ steps?$", words[4])
    trained.region.get_by_role("slider", name="Smoothing").fill("0")
    expect(trained.region.locator(".nl-memory")).to_have_text("off")
    assert drawn(trained)[3] == {"train raw": 112, "valid raw": 2}
    trained.button("Table").click()  # what the plot would show
    assert drawn(trained)[3] == {"train raw": 112, "valid raw": 2}
    assert trained.plot.is_hidden()


def test_a_name_of_a_stranger_is_text_in_the_files(trained):
    trained.region.get_by_role("tab").nth(1).click()
    name, _, root, _ = drawn(trained)
    assert name == "saved_run-_b__x____y.svg"
    assert root.find(SVG + "title").text == 'saved run · <b>"x" & y'
    assert not [each for each in root.iter() if each.tag == SVG + "b"]


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_the_png_is_the_picture_in_the_colours_of_the_page(trained, theme):
    trained.notebook.theme(f"JupyterLab {theme}")
    for width in (1400, 400):
        trained.notebook.resize(width, 1200 if width == 1400 else 2300)
        trained.look()
        trained.notebook.screenshot(f"exports-{theme.lower()}-{width}", trained.region)
        name, data = saved(trained, "Save the plot as PNG")
        file = keep(trained, f"{theme.lower()}-{width}-{name}", data)
        picture = matplotlib.image.imread(file)[:, :, :3]
        box = trained.plot.locator(".uplot").bounding_box()
        assert picture.shape[:2] == (2 * (round(box["height"]) + HEAD), 2 * round(box["width"]))
        background = trained.region.evaluate("(panel) => getComputedStyle(panel).backgroundColor")
        assert (picture[1, 1] * 255).round().tolist() == [
            int(each) for each in re.findall(r"\d+", background)
        ]
        inked = (np.abs(picture - picture[1, 1]) > 0.1).any(axis=2)
        for part in (inked[: 2 * HEAD], inked[2 * HEAD :]):
            assert 0.002 < part.mean() < 0.5
    assert axe(trained.notebook.page, ".nl-panel") == []


def test_rows_of_a_long_run_say_of_which_steps_they_are(notebook):
    page = notebook(
        [
            SETUP
            + "import panel_training\n"
            + "panel_training.time = SimpleNamespace(sleep=lambda _: None, time=time.time)\n"
            + "learner = build('long', steps=5000)\nlearner.step(4500)\nlearner",
            "print(measured())",
        ]
    )
    page.result(0)
    page.reload()  # who was there all the time has each step
    panel = PanelPage(page, 0)
    panel.wait_status("paused")
    _, data = saved(panel, "Save the values as CSV")
    expect(panel.hint).to_contain_text("a row is up to 4 steps; learner.history.to_pandas() has each of them")
    train, _, _ = json.loads(page.result(1))
    head, *rows = table(data)
    assert head[:5] == ["step", "to", "train mean", "train lowest", "train highest"]
    covered = []
    for row in rows:
        first, last = int(row[0]), int(row[1])
        part = train[first - 1 : last]
        covered += part
        mean, low, high = map(float, row[2:5])
        assert (low, high) == (min(part), max(part)) and mean == pytest.approx(np.mean(part), rel=1e-12)
    assert covered == train


# -- the bell --------------------------------------------------------------------------------------------

HIDDEN = "Object.defineProperty(document, 'visibilityState', { get: () => 'hidden', configurable: true })"
RECORDER = """
() => {
    window.told = [];
    window.Notification = class {
        static permission = "granted";
        static requestPermission = async () => window.answer ?? "granted";
        constructor(title, { body, tag }) { window.told.push([title, body]); }
    };
}
"""


@pytest.fixture
def bell(notebook):
    """A panel of a training in which step 31 is poisoned, shown twice; what it tells is kept."""
    page = notebook(
        [
            SETUP + "learner = build('told', steps=50, epochs=6, poisoned=30)\n"
            "learner.breakpoints.add(NonFinite())\nlearner",
            "learner",
        ]
    )
    page.page.context.grant_permissions(["notifications"])
    page.page.evaluate(RECORDER)
    page.result(0)
    page.result(1)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    yield panel
    page.page.evaluate("localStorage.removeItem('notebook_learner tell')")


def choice(panel):
    return panel.region.get_by_role("combobox", name="Tell me")


def told(panel):
    return panel.notebook.page.evaluate("window.told")


def test_a_hit_and_the_end_are_told_once_and_a_pause_is_not(bell):
    page = bell.notebook
    expect(choice(bell)).to_have_value("off")
    choice(bell).select_option("notification")
    expect(choice(PanelPage(page, 1))).to_have_value("notification")
    for cell, name in enumerate(("Learner told", "Learner told, view 2")):
        PanelPage(page, cell).look()
        expect(PanelPage(page, cell).region).to_have_attribute("aria-label", name)
    assert axe(page.page, ".nl-panel") == []
    bell.look()
    bell.click("Run")
    expect(bell.why).to_contain_text("stopped by NonFinite()")
    ((title, body),) = told(bell)
    assert title == "told" and body.startswith("stopped by NonFinite(): ")
    assert body.endswith(" · epoch 1, train, step 30 of 50")
    bell.breakpoints.get_by_role("switch").first.click()
    bell.click("Run")
    bell.wait_status("running")
    bell.click("Pause")  # with much left to train: a page does not hear of a run of a tenth of a second
    bell.wait_status("paused")
    assert len(told(bell)) == 1
    # Nobody sees the panel now: it hears of the end all the same.
    page.page.evaluate(HIDDEN)
    bell.click("Run")
    page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    wait_for(lambda: len(told(bell)) > 1, "the end is told", lambda: repr(told(bell)))
    assert [body.split(" · ")[0] for _, body in told(bell)[1:]] == ["finished"]
    page.page.evaluate("delete document.visibilityState")

    page.reload()
    page.page.evaluate(RECORDER)
    bell.wait_status("finished")
    expect(choice(bell)).to_have_value("notification")
    assert told(bell) == []
    assert not page.complaints


@pytest.fixture
def long_bell(notebook):
    """A panel of a long training that runs, and what it tells is kept."""
    page = notebook([SETUP + "import os\nlearner = build('told', steps=3000)\nlearner", "os.getpid()"])
    page.page.context.grant_permissions(["notifications"])
    page.page.evaluate(RECORDER)
    page.result(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    choice(panel).select_option("notification")
    panel.click("Run")
    panel.wait_more_points_than(3)
    yield panel
    page.page.evaluate("localStorage.removeItem('notebook_learner tell')")


def test_a_kernel_that_dies_is_told_once_also_in_a_hidden_tab(long_bell):
    page = long_bell.notebook
    page.page.evaluate(HIDDEN)
    os.kill(int(page.result(1)), signal.SIGKILL)
    wait_for(lambda: told(long_bell), "the death is told")
    page.page.evaluate("delete document.visibilityState")
    long_bell.wait_status("kernel gone")
    page.wait("bench.kernel(path)?.status === 'idle'", "the next kernel is idle")
    ((title, body),) = told(long_bell)
    assert title == "told" and body.startswith("the kernel died · epoch 1, train, step ")


def test_a_stop_and_a_restart_of_ones_own_are_not_told(long_bell):
    long_bell.stop()
    long_bell.wait_status("stopped")
    long_bell.click("Run")
    long_bell.wait_status("running")
    long_bell.notebook.restart()
    long_bell.wait_status("kernel gone")
    assert told(long_bell) == []


def test_where_the_browser_refuses_it_is_a_sound(bell):
    bell.notebook.page.evaluate("window.answer = 'denied'")
    choice(bell).select_option("notification")
    expect(choice(bell)).to_have_value("sound")
    expect(bell.hint).to_contain_text("the browser allows no notifications here; it will be a sound")
    bell.notebook.page.evaluate("window.Notification = undefined")
    choice(bell).select_option("off")
    choice(bell).select_option("notification")
    expect(choice(bell)).to_have_value("sound")
    bell.notebook.screenshot("exports-refused", bell.region)
