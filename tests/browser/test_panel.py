"""The panel of a learner in a real page: what its buttons do while a cell trains, and what it shows."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
from panel_page import PanelPage
from playwright.sync_api import expect

SETUP = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
"""


def test_pause_in_a_blocking_fit_acts_within_half_a_second_and_run_goes_on_to_the_same_bits(notebook):
    page = notebook(
        [
            SETUP + "learner = build('paused')",
            "learner.fit();",
            "stamps[-1]",
            "straight = build('straight', renderer='silent').fit()",
            "all(torch.equal(a, b) for a, b in zip(learner.model.parameters(), straight.parameters()))",
        ]
    )
    page.result(0)
    panel, waited, before = PanelPage(page, 1), [], 0
    for _ in range(3):
        page.run(1)
        panel.wait_status("running")
        panel.wait_more_points_than(before)
        clicked = panel.click_and_time("Pause")
        page.wait_idle()
        panel.wait_status("paused")
        shown = page.output_text(1)
        line = r"paused at epoch \d, (train|valid), step \d+ of \d+; fit\(\) goes on from here, .*"
        assert re.search(f"^{line}$", shown, re.MULTILINE), shown
        assert "Traceback" not in shown
        before = panel.points
        waited.append(float(page.result(2)) - clicked)
    # The machine may be busy with others for a moment: not the slowest of three.
    assert statistics.median(waited) < 0.5, waited

    panel.click("Run")
    panel.wait_status("finished")
    panel.wait_points(600)
    page.result(3)
    assert page.result(4) == "True"
    assert not page.complaints


# Where a frame is asked for only by who animates: each is a drawing of the page.
NOTE_WHAT_MOVES = """
() => {
  window.moved = [];
  const note = (event) => event.target.closest(".nl-panel") && window.moved.push(event.target.className);
  for (const begin of ["animationstart", "transitionrun"]) document.addEventListener(begin, note, true);
}
"""


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.soak
def test_nothing_in_a_panel_moves_but_by_news(notebook, sized):
    """A browser on the same machine draws sixty frames a second for what does, on a core that may be the
    training's. A training that begins and ends changes all buttons, and one of unknown length has a bar."""
    made = f"learner = build('moving', steps=400, epochs=1, sized={sized})\nlearner"
    page = notebook([SETUP + made, "learner.start();"])
    page.run(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    bar = panel.region.get_by_role("progressbar", name="This epoch")
    expect(bar.locator(".nl-fill")).to_have_attribute("style", re.compile(r"scaleX\(0\)"))
    page.page.mouse.move(0, 0)
    page.page.evaluate(NOTE_WHAT_MOVES)
    page.run(1)
    panel.wait_status("running")
    expect(bar).to_have_attribute("aria-valuetext", re.compile(rf"^step [1-9]\d*{' of 400' * sized}$"))
    drawn = r"^transform: scaleX\(0\.\d+\)" if sized else r"translateX\(\d+%\) scaleX\(0\.25\)"
    expect(bar.locator(".nl-fill")).to_have_attribute("style", re.compile(drawn))
    panel.wait_status("finished")
    assert page.page.evaluate("window.moved") == []


@pytest.fixture
def stepper(notebook):
    """A panel below `learner` as a cell's last line, before the first step."""
    page = notebook([SETUP + "learner = build('stepped', steps=40)\nlearner", "len(stamps)"])
    page.run(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    return panel


def test_ten_clicks_on_step_are_ten_steps_and_rewind_takes_them_back(stepper):
    assert stepper.reason("Rewind") and stepper.reason("Pause")
    assert stepper.points == 0
    for taken in range(1, 11):
        stepper.click("Step")
        stepper.wait_position(f"epoch 1, train, step {taken} of 40")
    stepper.wait_points(10)
    assert stepper.notebook.result(1) == "10"
    for left in (9, 8, 7):
        stepper.click("Rewind")
        stepper.wait_position(f"epoch 1, train, step {left} of 40")
    stepper.wait_points(7)
    assert not stepper.notebook.complaints


@pytest.mark.soak
def test_a_checkpoint_saved_by_a_click_is_restored_by_one(stepper):
    for taken in (1, 2):
        stepper.click("Step")
        stepper.wait_position(f"epoch 1, train, step {taken} of 40")
    stepper.click("Save")
    restore = stepper.checkpoints.get_by_role("button", name=re.compile("^Restore "))
    expect(restore).to_have_count(1)
    label = restore.get_attribute("aria-label").removeprefix("Restore ")
    stepper.click("Step epoch")
    stepper.wait_position("epoch 2, train, step 0 of 40")
    stepper.wait_points(40)

    stepper.restore(label)

    stepper.wait_position("epoch 1, train, step 2 of 40")
    stepper.wait_points(2)


@pytest.mark.soak
def test_stop_asks_once_and_then_ends_the_run(stepper):
    stepper.click("Run")
    stepper.wait_status("running")
    stepper.click("Stop")
    stepper.wait_more_points_than(stepper.points)  # the dialog was not answered: it trains on
    stepper.wait_status("running")
    stepper.button("Really stop?").click()
    stepper.wait_status("stopped")
    assert stepper.reason("Stop")


def test_a_page_reloaded_in_mid_fit_has_its_panel_back_with_the_whole_curve(notebook):
    page = notebook([SETUP + "learner = build('reloaded', steps=10_000)", "learner.fit();"])
    page.result(0)
    page.run(1)
    panel = PanelPage(page, 1)
    panel.wait_status("running")
    panel.wait_more_points_than(100)
    before = panel.points

    page.reload()

    assert panel.seconds_until_back(before) < 5
    panel.wait_status("running")
    panel.wait_more_points_than(panel.points)
    panel.click("Pause")
    panel.wait_status("paused")
    standing = re.fullmatch(r"epoch 1, train, step (\d+) of 10000", panel.position.inner_text())
    assert standing, panel.position.inner_text()
    panel.wait_points(int(standing[1]))


OTHER_WIDGET = """
import ipywidgets

def served(button):
    if button.description == "not yet":
        button.description = f"served after {len(stamps)} steps"
    else:
        learner.stop()

every_step.append(lambda: print("step", len(stamps) + 1, "trained"))
button = ipywidgets.Button(description="not yet", layout={"width": "300px"})
button.on_click(served)
button
"""


@pytest.mark.soak
def test_a_busy_kernel_serves_other_widgets_and_keeps_the_order_of_cells_and_the_place_of_prints(notebook):
    page = notebook(
        [
            SETUP + "learner, order = build('queued', steps=2_000, epochs=50), []",
            OTHER_WIDGET,
            "learner.fit(); order.append('fit')",
            "order.append('next'); print(*order)",
            "order.append('last'); print(*order, len(stamps))",
        ]
    )
    page.run_all()
    panel = PanelPage(page, 2)
    panel.wait_status("running")
    panel.wait_more_points_than(10)
    other = page.outputs(1).get_by_role("button")
    other.click()
    expect(other).to_have_text(re.compile(r"served after \d+ steps"))
    panel.wait_more_points_than(panel.points)
    panel.wait_status("running")
    assert page.output_text(3) == page.output_text(4) == ""
    other.click()
    page.wait_idle()

    panel.wait_status("stopped")
    assert page.output_text(3) == "fit next"
    ended, steps = page.output_text(4).rsplit(" ", 1)
    assert ended == "fit next last"
    prints = [line for line in page.output_text(2).splitlines() if line.endswith(" trained")]
    assert prints == [f"step {number} trained" for number in range(1, int(steps) + 1)]
    assert "trained" not in page.output_text(1)


def test_a_pause_ends_run_all(notebook):
    page = notebook([SETUP + "learner = build('all', epochs=50)", "learner.fit()", "print('went on')"])
    page.run_all()
    panel = PanelPage(page, 1)
    panel.wait_status("running")
    panel.click("Pause")
    page.wait_idle()
    panel.wait_status("paused")
    assert "fit() goes on from here" in page.output_text(1)
    assert page.output_text(2) == ""


DANGER = "<img src=x onerror=window.hacked=1>"

HOSTILE = f"""
class Hostile(Metric):
    name = "{DANGER}"

    def update(self, item):
        return item.loss, 1

def fail():
    if len(stamps) == 3:
        raise RuntimeError("{DANGER}")

every_step.append(fail)
learner = build("{DANGER}", metrics=[Hostile()])
learner
"""


@pytest.mark.soak
def test_names_log_lines_and_errors_are_text_whatever_they_say(notebook):
    page = notebook([SETUP + HOSTILE])
    page.run(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    panel.click("Step")
    tab = panel.region.get_by_role("tab").filter(has_text="<img")
    tab.click()
    for place in (
        panel.region.get_by_role("heading").first,
        tab,
        panel.region.get_by_role("table").filter(has_text="<img").first,
    ):
        expect(place).to_contain_text(DANGER)
    expect(panel.plot.get_by_role("img")).to_have_attribute("aria-label", re.compile(re.escape(DANGER)))

    panel.click("Run")

    panel.wait_status("failed")
    expect(panel.log).to_contain_text(DANGER)
    expect(panel.error).to_contain_text(DANGER)
    page.wait_idle()
    assert page.page.locator(".jp-OutputArea-output img[src=x]").count() == 0
    assert page.page.evaluate("window.hacked === undefined")


@pytest.mark.soak
def test_each_number_says_what_it_is_of_and_the_bold_one_is_the_epochs(notebook):
    page = notebook([SETUP + "learner = build('labels', steps=20)", "learner.run_until((2, 5))\nlearner"])
    page.result(0)
    page.run(1)
    panel = PanelPage(page, 1)
    panel.wait_status("paused")
    table = panel.region.get_by_role("group", name="Table of metrics")
    expect(table.locator("thead th")).to_have_text(["Metric", "Epoch avg", "Best (epoch)", "Last batch"])
    train, valid = table.locator("tr[data-kind=split]").all()
    assert re.fullmatch(r"train\s+so far\s*[\d.]+\s+[\d.]+\s+\(1\)\s+[\d.]+", train.inner_text()), (
        train.inner_text()
    )
    assert re.fullmatch(r"valid\s+[\d.]+\s+[\d.]+\s+\(1\)\s+[\d.]+", valid.inner_text()), valid.inner_text()
    weights = "row => [...row.querySelectorAll('td')].map(each => [each, ...each.children].some("
    weights += "part => Number(getComputedStyle(part).fontWeight) >= 600))"
    for row in (train, valid):
        assert row.evaluate(weights) == [True, False, False, False]
    # Above the plot the same number is bold, and a batch's says that it is one.
    epochs = [row.locator(".nl-epoch > span").inner_text() for row in (train, valid)]
    batch = train.locator(".nl-batch").inner_text()
    read = [" ".join(each.split()) for each in panel.region.locator(".nl-read").all_inner_texts()]
    assert read == [f"train so far {epochs[0]} batch {batch}", f"valid avg {epochs[1]}"]
    assert panel.region.locator(".nl-read b").all_inner_texts() == epochs
    small = "one => parseFloat(getComputedStyle(one).fontSize)"
    (number, of_batch) = (
        panel.region.locator(f".nl-read {each}").first.evaluate(small) for each in ("b", "small")
    )
    assert of_batch < number
    dials = panel.region.locator("[data-part=dials] .nl-dial")
    told = {each.inner_text().strip(): each.locator("input").input_value() for each in dials.all()}
    assert told == {"Learning rate": "0.01", "Momentum": "0.9", "Weight decay": "0"}
    expect(panel.region.locator("[data-part=progress]")).to_contain_text(re.compile(r"\d m?s so far"))


@pytest.mark.soak
def test_the_interrupt_button_pauses_what_the_panels_run_began(notebook):
    page = notebook([SETUP + "learner = build('idle', epochs=1000)\nlearner", "print(learner.status)"])
    page.run(0)
    panel = PanelPage(page, 0)
    panel.wait_status("ready")
    panel.click("Run")
    panel.wait_status("running")
    panel.wait_more_points_than(5)
    page.wait_idle()
    page.interrupt()
    panel.wait_status("paused")
    assert page.result(1) == "paused"
