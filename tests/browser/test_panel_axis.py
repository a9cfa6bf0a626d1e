"""The curves along steps, epochs or training time, in a real page."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from accessibility import axe
from panel_page import PanelPage, panel_after_training
from panel_room import check_room
from playwright.sync_api import expect

SETUP = f"""
import itertools, sys, json
sys.path.insert(0, {str(Path(__file__).parent)!r})
import panel_training
from panel_training import *
from notebook_learner import Artifacts
from notebook_learner.metric import Metric

class Number(Metric):
    needs = ("loss",)

    def __init__(self, n):
        self.name = f"number {{n}}"

    def update(self, item):
        return item.loss

def made(name, steps=40, more=0):
    return build(name, steps=steps, epochs=5, metrics=[Number(n) for n in range(more)])

def slow(name):
    other = made(name, steps=20)
    every_step.append(lambda: time.sleep(0.04))
    other.step(50)
    every_step.clear()
    other.save()

def seconds(step):
    "Between which seconds of the training line a step ended: those in which the training of its epoch did."
    spent = begin = 0.0
    for part in learner.history.snapshot():
        spent += sum(block.seconds for block in part.blocks)
        if part.split == "train" and (last := part.blocks[-1].iteration) >= step:
            return [spent if last == step else begin, spent]
        begin = spent if part.split == "train" else begin
"""
CELLS = {
    "setup": SETUP + "slow('runs/slow')\nown = 0",
    "learner": "own += 1\nlearner = made(f'runs/{own}/own', more=5)\nlearner",
    "train": "taken = itertools.count(1)\nevery_step.append(lambda: time.sleep(0.3 * (next(taken) == 43)))\n"
    "learner.step(70); learner.rewind(10); learner.lr = 0.1; learner.step(48)\nevery_step.clear()\n"
    "learner.panel.overlay('runs/slow')",
    "times": "print(json.dumps([seconds(n) for n in range(1, 101)]))",
}
TIMES = list(CELLS).index("times")
SVG = "{http://www.w3.org/2000/svg}"


def axis(panel, name):
    return panel.region.get_by_role("group", name="Horizontal axis").get_by_role("button", name=name)


def where(panel):
    return panel.region.locator(".nl-read-where")


def point(panel, share):
    box = panel.plot.locator(".u-over").bounding_box()
    panel.notebook.page.mouse.move(box["x"] + share * box["width"], box["y"] + 60)


def check_time(found, times, step, rounded):
    """The panel joins the blocks that come between two messages, and the learner those that are over, each
    others: in between a step may lie anywhere, as one may have taken most of the time on a busy machine.
    Where an epoch's training ends, and at the newest step, both know the time."""
    least, most = times[step - 1]
    assert least - rounded <= found <= most + rounded, (step, found, least, most)


@pytest.fixture
def trained(page):
    """A panel of two and a half epochs, with a branch that was left and another run behind the curves, whose
    steps take five times as long and whose epochs are half as long."""
    page.resize(1400, 900)
    return panel_after_training(page, 100, cell=1)


def test_along_the_epochs_runs_lie_one_over_the_other(trained):
    expect(axis(trained, "By step")).to_have_attribute("aria-pressed", "true")
    axis(trained, "By epoch").click()
    expect(axis(trained, "By epoch")).to_have_attribute("aria-pressed", "true")
    expect(trained.plot.get_by_role("img")).to_have_attribute("aria-label", re.compile("against epochs"))
    point(trained, 0.999)  # the other run goes to its step 48 of 20 an epoch: as far as step 96 of this one
    expect(where(trained)).to_have_text("epoch 2.50 · step 100")
    point(trained, 0.5)
    found = re.fullmatch(r"epoch (\d\.\d\d) · step (\d+)", where(trained).inner_text())
    assert found and float(found[1]) == pytest.approx(int(found[2]) / 40, abs=0.006)
    assert int(found[2]) == pytest.approx(50, abs=2)


def test_along_the_time_a_step_lies_where_the_clock_was(trained):
    times = json.loads(trained.notebook.result(TIMES))
    axis(trained, "By time").click()
    # The other run took longer: this one ends early.
    for share in (0.05, 0.2):
        point(trained, share)
        shown, step = re.match(r"([\d.]+ m?s) · step (\d+)", where(trained).inner_text()).groups()
        seconds = float(shown.split()[0]) / (1000 if shown.endswith("ms") else 1)
        check_time(seconds, times, int(step), rounded=0.051)
    point(trained, 0.99)
    expect(where(trained)).to_contain_text("step 100 · epoch 3")


def test_the_rewind_counts_steps_along_any_axis(trained):
    for name in ("By epoch", "By time"):
        axis(trained, name).click()
        trained.slider.fill("60")
        expect(trained.region.locator(".nl-aim")).to_have_text("rewind to step 60")
        expect(where(trained)).to_contain_text("step 60")
        trained.slider.press("Escape")
    axis(trained, "By time").click()
    trained.slider.fill("60")
    trained.slider.press("Enter")
    trained.wait_points(60)
    expect(axis(trained, "By time")).to_have_attribute("aria-pressed", "true")
    expect(where(trained)).to_contain_text("step 60 · epoch 2")


def test_the_choice_is_kept_for_the_run(trained):
    axis(trained, "By time").click()
    trained.notebook.save()
    trained.notebook.reload()
    again = PanelPage(trained.notebook, trained.cell)
    again.look()
    expect(axis(again, "By time")).to_have_attribute("aria-pressed", "true")
    expect(where(again)).to_contain_text("step 100")


def edges(panel):
    """The steps at the left and the right edge of the plot."""
    found = []
    for share in (0.003, 0.997):
        point(panel, 0.5)
        point(panel, share)
        panel.notebook.page.wait_for_timeout(300)  # a frame, in which what is under the pointer is read
        found.append(int(re.search(r"step (\d+)", where(panel).inner_text())[1]))
    return found


def test_a_zoom_stays_where_it_is_when_the_axis_changes(trained):
    frame = trained.plot
    frame.focus()
    frame.press("+")
    frame.press("+")
    before = edges(trained)
    assert 1 < before[0] < before[1] < 100
    for name in ("By epoch", "By time", "By step"):
        axis(trained, name).click()
        expect(axis(trained, name)).to_have_attribute("aria-pressed", "true")
        assert edges(trained) == pytest.approx(before, abs=1), name


@pytest.mark.parametrize("theme", ["Dark", "Light"])
def test_the_pictures_say_along_what_they_are(trained, theme):
    page = trained.notebook
    page.theme(f"JupyterLab {theme}")
    for name, word, title in (("By epoch", "epoch", "epochs"), ("By time", "time", "training time")):
        axis(trained, name).click()
        for width in (400, 760, 1400):
            page.resize(width, 1200 if width == 1400 else 2300)
            trained.look()
            check_room(trained)
            page.screenshot(f"axis-{name}-{theme}-{width}", trained.region)
        with page.page.expect_download() as download:
            trained.button("Save the plot as SVG").click()
        root = ElementTree.fromstring(Path(download.value.path()).read_bytes())
        words = [text.text for text in root.iter(SVG + "text")]
        assert f"own · Loss along the {title}" in words and word in words and "step" not in words
        assert axe(page.page, ".nl-panel") == []


def test_the_table_of_values_says_when_each_step_was(trained):
    times = json.loads(trained.notebook.result(TIMES))
    with trained.notebook.page.expect_download() as download:
        trained.button("Save the values as CSV").click()
    head, *rows = csv.reader(io.StringIO(Path(download.value.path()).read_text()))
    assert head == ["step", "train", "valid", "epoch", "seconds"]
    assert {40, 80} <= {step for step, (least, most) in enumerate(times, 1) if least == most}  # epochs' ends
    assert [float(row[-1]) for row in rows] == sorted(float(row[-1]) for row in rows)
    for step, *_, epoch, seconds in rows:
        assert float(epoch) == pytest.approx(int(step) / 40)
        check_time(float(seconds), times, int(step), rounded=0.002)


def test_a_run_without_times_refuses_that_axis_in_words(notebook):
    page = notebook(
        [
            SETUP + "import shutil\nlearner = made('new')\nlearner.step(50)\nlearner.save()\n"
            "shutil.copytree('new', 'old', ignore=shutil.ignore_patterns('artifacts.h5', 'checkpoint'))\n"
            "Artifacts('old')",
        ]
    )
    page.result(0)
    panel = PanelPage(page, 0)
    panel.look()
    expect(axis(panel, "By time")).to_have_attribute("aria-disabled", "true")
    axis(panel, "By time").press("Enter")  # it cannot be used, and says so
    expect(panel.hint).to_have_text("of this run it is not known how long its steps took")
    expect(axis(panel, "By step")).to_have_attribute("aria-pressed", "true")
    axis(panel, "By epoch").click()
    expect(axis(panel, "By epoch")).to_have_attribute("aria-pressed", "true")
