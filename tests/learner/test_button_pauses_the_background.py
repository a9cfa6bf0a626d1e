"""The kernel's interrupt button pauses a training that runs in the background, in real kernels."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "widget"))
from kernels import INSTALLED, Page, python_of

HERE = Path(__file__).parent
SETUP = f"""
import sys, threading, time
sys.path[:0] = [{str(HERE)!r}]
import torch
torch.set_num_threads(1)
from builder_support import Tape, adam, batches, classifier, net
from notebook_learner.event import StatusChanged
from notebook_learner.metric import Loss
from notebook_learner.run.driver import Driver

class Told(threading.Thread):
    "Says when a learner has paused; a cell's own prints stay with the cell."
    def __init__(self):
        super().__init__(daemon=True)
        self.paused, self.trained = threading.Event(), threading.Event()
    def handle(self, event):
        if type(event).__name__ == "MetricBlock":
            self.trained.set()
        if isinstance(event, StatusChanged) and event.status == "paused":
            self.paused.set()

def note_when_it_waits(path):
    "Make a file once the cell is inside of `wait`; before that an interrupt is one like any other."
    main = threading.main_thread().ident
    while True:
        frame = sys._current_frames()[main]
        while frame is not None and frame.f_code is not Driver.wait.__code__:
            frame = frame.f_back
        if frame is not None:
            open(path, "w").close()
            return
        time.sleep(0.01)

def build(folder):
    global told, learner
    told, model = Told(), net()
    learner = classifier(folder).metrics(Loss()).num_epochs(10**6).renderer(told).build(
        model, adam(model), None, batches())
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    page = Page(python_of(INSTALLED), tmp_path_factory.mktemp("kernel"))
    page.run(SETUP)
    yield page
    page.leave()


@pytest.fixture
def page(opened: Page, tmp_path: Path) -> Page:
    opened.run(f"build({str(tmp_path)!r})")
    return opened


def press(page: Page) -> None:
    page.manager.interrupt_kernel()


def pauses(page: Page) -> str:
    return page.run("print(told.paused.wait(30), learner.status)")


def test_between_two_cells(page: Page) -> None:
    page.run("learner.start(); told.trained.wait(30)")
    press(page)
    assert pauses(page) == "True paused\n"
    before = page.run("print(learner.position.iteration)")
    page.run("learner.step(3)")
    assert int(page.run("print(learner.position.iteration)")) == int(before) + 3


def test_started_by_a_button_of_the_panel(page: Page) -> None:
    """A message of a widget, which the kernel handles between two cells."""
    page.run(
        "def opened(comm, message):\n    comm.on_msg(lambda message: learner.start())\n"
        "get_ipython().kernel.comm_manager.register_target('page', opened)"
    )
    page.end(page.open_comm("one"))
    page.end(page.tell("one", {}))
    page.run("told.trained.wait(30)")
    press(page)
    assert pauses(page) == "True paused\n"


@pytest.mark.parametrize("first", ["learner.start()", "pass"])
def test_while_another_cell_runs_that_cell_is_interrupted_too(page: Page, first: str) -> None:
    page.run("learner.start()" if first == "pass" else "pass")
    cell = page.begin(f"{first}\ntold.trained.wait(30)\nprint('waits')\ntime.sleep(600)")
    page.shows(cell, "waits")
    press(page)
    page.end(cell)
    assert str(page.error(cell)).startswith("KeyboardInterrupt")
    assert pauses(page) == "True paused\n"


def test_a_cell_that_waits_for_the_end_is_told_of_the_pause(page: Page, tmp_path: Path) -> None:
    waits = tmp_path / "waits"
    noting = f"threading.Thread(target=note_when_it_waits, args=({str(waits)!r},), daemon=True).start()"
    cell = page.begin(f"learner.start()\ntold.trained.wait(30)\n{noting}\nlearner.wait()")
    ends = time.monotonic() + 60
    while not waits.exists() and time.monotonic() < ends:
        time.sleep(0.01)
    press(page)
    page.end(cell)
    assert str(page.error(cell)).startswith("Paused: paused at")
    assert pauses(page) == "True paused\n"


def test_where_nothing_runs_the_button_does_what_it_did(page: Page) -> None:
    press(page)
    page.run("learner.start(); told.trained.wait(30); learner.pause(); told.paused.clear()")
    press(page)
    assert (
        page.run("learner.step(2); print(learner.position.iteration > 2, learner.status)") == "True paused\n"
    )
    cell = page.begin("print('sleeps')\ntime.sleep(600)")
    page.shows(cell, "sleeps")
    press(page)
    page.end(cell)
    assert str(page.error(cell)).startswith("KeyboardInterrupt")


def test_a_training_that_ended_leaves_no_pause_for_the_next(page: Page) -> None:
    page.run("learner.num_epochs = 1; learner.start(); learner.wait()")
    press(page)
    page.run("learner.fit(epochs=1)")
    assert page.run("print(learner.status)") == "finished\n"
