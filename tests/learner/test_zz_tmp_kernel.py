"""In a real notebook kernel: prints stay with their cell, and a pause is one quiet line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

PATIENCE = 15.0

SETUP = """
import sys, threading
sys.path.insert(0, {here!r})
from pathlib import Path
from driver_support import Trouble, bench
import torch
torch.set_num_threads(1)
folder = Path({folder!r})
"""


@dataclass
class Cell:
    """What a cell left on the page."""

    id: str
    text: dict[str, str] = field(default_factory=lambda: {"stdout": "", "stderr": ""})
    errors: list[dict[str, Any]] = field(default_factory=list)


class Notebook:
    """A front end in thirty lines: runs cells, and puts every message to the cell it names."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client
        self.cells: dict[str, Cell] = {}

    def begin(self, code: str) -> Cell:
        """Send a cell without waiting for its end."""
        cell = Cell(self.client.execute(code))
        self.cells[cell.id] = cell
        return cell

    def run(self, code: str) -> Cell:
        """Run a cell to its end; all that came from anywhere is sorted on the way."""
        cell = self.begin(code)
        self.end(cell)
        return cell

    def end(self, cell: Cell) -> None:
        while self.next() != (cell.id, "idle"):
            pass

    def until(self, cell: Cell, text: str) -> None:
        """Wait until a cell shows a text."""
        while text not in cell.text["stdout"]:
            self.next()

    def next(self) -> tuple[str, str]:
        try:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
        except Empty:
            shown = {cell.id: (cell.text, cell.errors) for cell in self.cells.values()}
            raise AssertionError(f"nothing more came; shown: {shown}") from None
        parent, content = message["parent_header"].get("msg_id", ""), message["content"]
        cell = self.cells.get(parent)
        if cell is not None and message["msg_type"] == "stream":
            cell.text[content["name"]] += content["text"]
        if cell is not None and message["msg_type"] == "error":
            cell.errors.append(content)
        return parent, content.get("execution_state", "")


@pytest.fixture(scope="module")
def kernel() -> Iterator[Any]:
    manager, client = start_new_kernel(kernel_name="python3")
    yield manager, Notebook(client)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.fixture
def notebook(kernel: Any, tmp_path: Path) -> Notebook:
    _, notebook = kernel
    setup = notebook.run(SETUP.format(here=str(Path(__file__).parent), folder=str(tmp_path)))
    assert setup.errors == []
    return notebook


BACKGROUND = """
b = bench(folder, Trouble(where=(1, "train", 3)))
at_three, go_on = threading.Event(), threading.Event()
def step():
    at = b.learner._replica.loop.position
    print(f"step {at.iteration} trained")
    print(f"step {at.iteration} warned", file=sys.stderr)
    if b.trouble.here():
        at_three.set()
        assert go_on.wait(60)
b.trouble.calls["forward"] = step
b.learner.start()
"""


def test_prints_of_a_background_run_stay_with_the_cell_that_started_it(notebook: Notebook) -> None:
    first = notebook.run(BACKGROUND)
    second = notebook.run("assert at_three.wait(60); print('another cell'); go_on.set()")
    third = notebook.run("_ = b.learner.wait(); print('waited')")
    notebook.until(first, "step 13 trained")

    steps = [f"step {i} trained" for i in range(14)]
    assert first.text["stdout"].splitlines() == steps
    assert first.text["stderr"].splitlines() == [step.replace("trained", "warned") for step in steps]
    assert (second.text["stdout"], second.text["stderr"]) == ("another cell\n", "")
    assert (third.text["stdout"], third.text["stderr"]) == ("waited\n", "")
    assert [cell.errors for cell in (first, second, third)] == [[], [], []]


PAUSE = """
assert at_three.wait(60)
control = b.learner._replica.loop.control
request = control.request
control.request = lambda what: (request(what), go_on.set())
b.learner.pause()
"""


def test_a_resumed_run_prints_to_the_cell_that_resumed_it(notebook: Notebook) -> None:
    first = notebook.run(BACKGROUND)
    notebook.run(PAUSE)
    paused_after = first.text["stdout"].splitlines()
    resumed = notebook.run("b.learner.resume()")
    notebook.run("_ = b.learner.wait()")
    notebook.until(resumed, "step 13 trained")

    assert paused_after + resumed.text["stdout"].splitlines() == [f"step {i} trained" for i in range(14)]
    assert paused_after[-1] == "step 3 trained"


FOREGROUND = """
import time
b = bench(folder)
control, still_hangs = b.learner._replica.loop.control, {still_hangs}
def step():
    if b.learner._replica.loop.iteration == 3:
        print("in step 3", flush=True)
        while not control.interrupted:
            time.sleep(0.01)
        print("heard", flush=True)
        while still_hangs:
            time.sleep(0.01)
b.trouble.calls["forward"] = step
"""


def test_the_interrupt_button_pauses_with_one_quiet_line_and_fit_goes_on(
    kernel: Any, notebook: Notebook
) -> None:
    manager, _ = kernel
    assert notebook.run(FOREGROUND.format(still_hangs=False)).errors == []
    cell = notebook.begin("b.learner.fit()")
    notebook.until(cell, "in step 3")
    manager.interrupt_kernel()
    notebook.end(cell)

    (error,) = cell.errors
    assert error["ename"] == "Paused"
    assert error["traceback"] == [
        "paused at epoch 1, train, step 4 of 7; fit() goes on from here, learner.step() takes one step"
    ]
    again = notebook.run("b.learner.fit(); print(b.learner.status, b.learner.position)")
    assert again.errors == []
    assert again.text["stdout"] == "finished epoch 2, valid, step 3 of 3\n"


def test_the_button_pressed_twice_leaves_a_step_that_hangs(kernel: Any, notebook: Notebook) -> None:
    manager, _ = kernel
    assert notebook.run(FOREGROUND.format(still_hangs=True)).errors == []
    cell = notebook.begin("b.learner.fit()")
    notebook.until(cell, "in step 3")
    manager.interrupt_kernel()
    notebook.until(cell, "heard")
    manager.interrupt_kernel()
    notebook.end(cell)

    (error,) = cell.errors
    assert error["ename"] == "KeyboardInterrupt"
    assert "The learner stands before this step, at epoch 1, train, step 3 of 7" in error["traceback"][-1]
    again = notebook.run("b.trouble.calls.clear(); b.learner.fit(); print(b.learner.status)")
    assert again.text["stdout"] == "finished\n"
