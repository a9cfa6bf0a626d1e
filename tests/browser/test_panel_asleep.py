"""What the panel says after its page slept, as a laptop whose lid was closed, and after its kernel took too
much memory: that no button, clock or status lies."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from lab import wait_for
from memory_limit import memory_limit
from panel_page import PanelPage
from playwright.sync_api import expect

SETUP = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from panel_training import *
from pathlib import Path
every_step.append(lambda: Path("taken").write_text(str(len(stamps) + 1)))
"""
MIB = 1 << 20
BUSY = "a cell is training; buttons act at its next step"


def notebook_of(notebook, steps: int, *more: str):
    """A page whose second cell trains so many steps, while its kernel counts them in a file."""
    page = notebook([f"{SETUP}learner = build('asleep', steps={steps}, epochs=1)\nos.getpid()", *more])
    page.pid = int(page.result(0))
    return page


def fit(page, cell: int = 1) -> PanelPage:
    page.run(cell)
    panel = PanelPage(page, cell)
    panel.wait_status("running")
    panel.wait_more_points_than(10)
    return panel


def position(panel) -> int:
    """The step that the panel names."""
    return int(re.search(r"step (\d+)", panel.position.text_content())[1])


def wait_curve(panel, steps: int) -> None:
    """Until the curve ends at that step; of a long run a point stands for several."""
    expect(panel.region).to_contain_text(f"step {steps:,} · epoch 1")


def trouble(panel):
    return panel.region.locator("[data-part=trouble]")


def file_of(page) -> Path:
    return page.lab.root / page.path


def taken(page) -> int:
    """How many steps the kernel has taken, asked without the page."""
    return int(file_of(page).with_name("taken").read_text() or 0)


LIT = "(all) => all.filter((one) => one.ariaDisabled !== 'true').map((one) => one.textContent)"
LISTEN = """
(panel) => {
    window.said = [];
    const parts = panel.querySelectorAll("[data-part=status], [data-part=hint], [data-part=trouble]");
    const note = () => parts.forEach((part) => {
        const text = part.checkVisibility() ? part.textContent : "";
        if (text && !window.said.includes(text)) window.said.push(text);
    });
    const all = { subtree: true, childList: true, characterData: true, attributes: true };
    new MutationObserver(note).observe(panel, all);
}
"""
"""Keeps whatever the panel says from now on about its learner and its kernel."""


def lit(panel) -> list[str]:
    """The buttons for the learner that can be pressed."""
    return panel.region.locator("button[data-cmd]:visible").evaluate_all(LIT)


@contextmanager
def asleep() -> Iterator[None]:
    """Stop all processes of this test's browser, as a laptop that sleeps does; then let them go on."""
    family = psutil.Process().children(recursive=True)
    browser = [process for process in family if "chrom" in process.name()]
    assert len(browser) > 3, family
    for process in browser:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in browser:
            process.send_signal(signal.SIGCONT)


# -- memory ----------------------------------------------------------------------------------------------


def test_a_kernel_that_takes_more_memory_than_it_may_has_died_and_what_is_lost_is_told(notebook):
    hoard = "every_step.append(lambda: Path('hungry').exists() and hoard.append(b'x' * (16 << 20)))"
    page = notebook_of(notebook, 3000, f"hoard = []\n{hoard}\nlearner.fit();")
    kernel = psutil.Process(page.pid)
    with memory_limit(kernel.pid, 600 * MIB) as who:
        panel = fit(page)
        panel.click("Save")
        expect(panel.checkpoints.get_by_role("button", name=re.compile("^Restore "))).to_have_count(1)
        panel.wait_more_points_than(panel.points + 10)
        (file_of(page).with_name("hungry")).touch()
        wait_for(lambda: not kernel.is_running(), f"the {who} kills the kernel")
    expect(trouble(panel)).to_contain_text("The kernel died.")
    expect(panel.region.locator("[data-part=resume]")).to_contain_text('LearnerBuilder("asleep").resume()')
    expect(trouble(panel)).to_contain_text(
        re.compile(r"[1-9]\d* steps since the last checkpoint \(epoch 1, ")
    )
    expect(panel.status).to_have_text("kernel gone")
    assert lit(panel) == []
    # The server starts another kernel by itself: it is not this learner's.
    page.wait("bench.kernel(path)?.status === 'idle'", "the next kernel is idle")
    expect(trouble(panel)).to_contain_text("The kernel died.")
    assert lit(panel) == []
    page.screenshot("killed-by-memory", panel.region)


# -- sleep -----------------------------------------------------------------------------------------------

SLEEPS = [pytest.param(3, id="seconds"), pytest.param(70, id="more than a minute", marks=pytest.mark.soak)]


@pytest.mark.parametrize("seconds", SLEEPS)
def test_after_a_sleep_the_panel_catches_up_and_says_nothing_false(notebook, seconds):
    page = notebook_of(notebook, 20_000, "learner.fit();", "learner.position.iteration")
    panel = fit(page)
    panel.region.evaluate(LISTEN)
    with asleep():
        time.sleep(seconds)  # the length of a sleep is what counts: after a minute the server hangs up
        slept = taken(page)
    wait_for(lambda: position(panel) > slept, "the panel catches up")
    assert set(page.page.evaluate("window.said")) <= {"running", BUSY}
    expect(panel.status).to_have_text("running")
    panel.click("Pause")
    panel.wait_status("paused")
    page.wait_idle()
    steps = int(page.result(2))
    wait_curve(panel, steps)
    panel.wait_position(f"step {steps} of 20000")
    panel.click("Step")
    wait_curve(panel, steps + 1)
    assert not page.complaints


@pytest.mark.parametrize("seconds", SLEEPS)
def test_a_training_that_ended_in_a_sleep_is_over_when_the_page_wakes(notebook, seconds):
    steps = 40 * seconds + 200
    page = notebook_of(notebook, steps, "learner.fit();")
    panel = fit(page)
    with asleep():
        time.sleep(seconds)
        wait_for(lambda: taken(page) == steps, "training ends")
    panel.wait_status("finished")
    wait_curve(panel, steps)
    assert panel.region.locator(".nl-left").text_content() == ""
    assert not page.complaints


@pytest.mark.parametrize("seconds", SLEEPS)
def test_a_kernel_that_died_in_a_sleep_is_told_when_the_page_wakes(notebook, seconds):
    page = notebook_of(notebook, 20_000, "learner.fit();")
    panel = fit(page)
    with asleep():
        kill_and_wait_for_the_next(page)
        time.sleep(seconds)
    expect(trouble(panel)).to_contain_text(re.compile("The kernel (died|was restarted)"))
    assert lit(panel) == []


def test_a_kernel_that_died_in_a_night_whose_connection_was_lost_is_told_too(notebook):
    page = notebook_of(notebook, 20_000, "learner.fit();")
    panel = fit(page)
    # As a server does that waits for a page in vain; it is asleep before it connects again.
    page.page.evaluate("(path) => bench.kernel(path)._ws.close()", page.path)
    with asleep():
        kill_and_wait_for_the_next(page)
    # JupyterLab draws how long it waits before it connects again, each time longer.
    told = re.compile("The kernel (died|was restarted)")
    expect(trouble(panel)).to_contain_text(told, timeout=150_000)
    assert lit(panel) == []


def kill_and_wait_for_the_next(page) -> None:
    """Kill the kernel, as a machine without memory left does, until the server has started another one."""
    kernel = psutil.Process(page.pid)
    connection = kernel.cmdline()[-1]
    server = psutil.Process(page.lab._process.pid)
    kernel.kill()
    wait_for(
        lambda: any(each.pid != kernel.pid and connection in each.cmdline() for each in server.children()),
        "the server starts another kernel",
    )
